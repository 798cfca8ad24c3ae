//! Lines that cannot be events: each is kept with its number and the reason, everything else is committed.

use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use super::{Counts, Input, counts, import, rejects_in};
use crate::support::{as_admin, numbers, on};

#[tokio::test]
async fn rejected_lines_are_kept_with_number_and_reason_and_all_others_are_committed() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET event_payload_max_bytes = 60").await;
    let large = format!("{{\"n\":7,\"text\":\"{}\"}}", "x".repeat(60));
    let long = format!("{{\"n\":5,\"text\":\"{}\"}}", "x".repeat(100));
    let lines: [&[u8]; 12] = [
        b"{\"n\":1}",
        b"{\"n\":2,",
        b"",
        b"{\"n\":\xff\xfe}",
        long.as_bytes(),
        b"{\"n\":6,\"a\":[{\"b\":null}]}",
        large.as_bytes(),
        b"{\"n\":8,\"m\":1e200000}",
        b"[9]",
        b"{\"n\":10}\r",
        b"{\"n\":11,\"text\":\"\\u0000\"}",
        b"{\"n\":12}",
    ];
    // The last line has no end.
    let input = Input::new(lines.join(&b'\n'));
    let outcome = import(&db, &input.file).args(["--json", "--line-max-bytes", "90"]).run().await;
    let file = input.file.display();
    assert_eq!(outcome.sentence(5), format!("rejected lines and reasons are in {file}.rejected"));
    assert_eq!(counts(&outcome), Counts { imported: 3, rejected: 9, skipped: 0 });
    assert_eq!(numbers(&db).await, [1, 10, 12]);

    let rejects = input.rejects();
    let mut sorted = rejects.clone();
    sorted.sort();
    let text = |line: &[u8]| std::str::from_utf8(line).ok().map(str::to_owned);
    let expected = [
        (2, "line is not valid JSON (column 7)", text(lines[1])),
        (3, "line is empty", text(lines[2])),
        (4, "line is not UTF-8", None),
        (5, "line is longer than --line-max-bytes", None),
        (6, "payload member /a/0/b is null", text(lines[5])),
        (
            7,
            "member payload has 80 bytes as stored, more than event_payload_max_bytes allows (60)",
            text(lines[6]),
        ),
        (8, "value overflows numeric format", text(lines[7])),
        (9, "member payload must be a JSON object", text(lines[8])),
        (11, "payload", text(lines[10])),
    ];
    for ((line, reason, kept), (expected_line, expected_reason, expected_text)) in
        sorted.iter().zip(&expected)
    {
        assert_eq!((line, kept), (expected_line, expected_text));
        assert!(reason.contains(expected_reason), "line {line}: {reason}");
    }
    assert_eq!(sorted.len(), expected.len());
}

#[tokio::test]
async fn lines_that_only_the_database_refuses_do_not_take_the_others_of_their_batch_with_them() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET event_payload_max_bytes = 60").await;
    let lines: Vec<String> = (1..=100)
        .map(|n| match n % 10 {
            0 => format!("{{\"n\":{n},\"text\":\"{}\"}}\n", "x".repeat(60)),
            _ => format!("{{\"n\":{n}}}\n"),
        })
        .collect();
    let input = Input::new(lines.concat());
    let outcome = import(&db, &input.file).args(["--json", "--writers", "3", "--batch", "25"]).run().await;
    outcome.sentence(5);
    assert_eq!(counts(&outcome), Counts { imported: 90, rejected: 10, skipped: 0 });
    let mut refused: Vec<i64> = input.rejects().into_iter().map(|(line, _, _)| line).collect();
    refused.sort_unstable();
    assert_eq!(refused, (1..=10).map(|n| n * 10).collect::<Vec<_>>());
    let mut kept = numbers(&db).await;
    kept.sort_unstable();
    assert_eq!(kept, (1..=100).filter(|n| n % 10 != 0).collect::<Vec<_>>());
}

#[tokio::test]
async fn pointers_that_find_nothing_reject_the_line() {
    let db = TestDb::new().await;
    let input = Input::new(concat!(
        r#"{"type":"a.b","data":{"n":1}}"#,
        "\n",
        r#"{"data":{"n":2}}"#,
        "\n",
        r#"{"type":["a.b"],"data":{"n":3}}"#,
        "\n",
        r#"{"type":"a.b"}"#,
        "\n",
        r#"{"type":"A","data":{"n":5}}"#,
        "\n",
    ));
    let outcome = on(&db, Role::App, ["import"])
        .arg(&input.file)
        .args(["--type-pointer", "/type", "--payload-pointer", "/data", "--resource-kind", "x"])
        .run()
        .await;
    outcome.sentence(5);
    assert_eq!(outcome.stdout, "1 imported, 4 rejected\n");
    let reasons: Vec<String> = input.rejects().into_iter().map(|(_, reason, _)| reason).collect();
    assert_eq!(
        reasons,
        [
            "there is no type at /type",
            "the value at /type is neither a string nor a number",
            "there is no payload at /data",
            "member type must be two or more lowercase words joined by dots, such as order.created",
        ]
    );
}

#[tokio::test]
async fn one_writer_keeps_the_order_of_the_lines() {
    let db = TestDb::new().await;
    let input = Input::numbered(1000);
    assert_eq!(import(&db, &input.file).args(["--batch", "7"]).ok().await, "1000 imported, 0 rejected\n");
    assert_eq!(numbers(&db).await, (1..=1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_empty_file_is_an_import_of_nothing() {
    let db = TestDb::new().await;
    let input = Input::new("");
    assert_eq!(import(&db, &input.file).ok().await, "0 imported, 0 rejected\n");
    assert!(!input.folder.path().join("events.ndjson.rejected").exists());
}

#[tokio::test]
async fn rejects_go_where_the_option_says_and_the_json_names_the_place() {
    let db = TestDb::new().await;
    let input = Input::new("{\"n\":1}\nx\n");
    let rejects = input.folder.path().join("bad lines");
    let outcome = import(&db, &input.file).arg("--json").arg("--rejects").arg(&rejects).run().await;
    outcome.sentence(5);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        report,
        json!({"imported": 1, "rejected": 1, "skipped": 0, "rejected_before": 0, "rejects_file": rejects})
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(&rejects.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(rejects_in(&rejects), [(2, "line is not valid JSON (column 1)".into(), Some("x".into()))]);
}

#[tokio::test]
async fn rejects_of_standard_input_go_into_the_working_folder() {
    let db = TestDb::new().await;
    let folder = tempfile::tempdir().unwrap();
    let outcome = import(&db, "-").current_dir(folder.path()).stdin("x\n").run().await;
    assert_eq!(outcome.sentence(5), "rejected lines and reasons are in stdin.rejected");
    assert_eq!(rejects_in(&folder.path().join("stdin.rejected")).len(), 1);
}

#[tokio::test]
async fn a_place_for_rejects_that_does_not_exist_is_refused_before_anything_is_imported() {
    let db = TestDb::new().await;
    let input = Input::new("{\"n\":1}\nx\n");
    let nowhere = input.folder.path().join("no such folder/rejects");
    let sentence = import(&db, &input.file).arg("--rejects").arg(&nowhere).refused(3).await;
    assert!(sentence.starts_with(&format!("cannot write {}: ", nowhere.display())), "{sentence}");
    assert!(numbers(&db).await.is_empty());
    let outcome = import(&db, &input.file).arg("--json").run().await;
    outcome.sentence(5);
    assert_eq!(counts(&outcome), Counts { imported: 1, rejected: 1, skipped: 0 });
}

#[tokio::test]
async fn rejects_that_cannot_be_written_stop_the_import_before_their_lines_count_as_done() {
    let db = TestDb::new().await;
    let input = Input::new(format!("{}x\n", super::numbered(1, 2)));
    let outcome =
        import(&db, &input.file).args(["--batch", "2", "--rejects"]).arg(input.folder.path()).run().await;
    let sentence = outcome.sentence(3);
    assert!(sentence.starts_with(&format!("cannot write {}: ", input.folder.path().display())), "{sentence}");
    assert!(sentence.ends_with("; run the same command again to go on"), "{sentence}");
    assert_eq!(outcome.stdout, "2 imported, 0 rejected\n");
    let outcome = import(&db, &input.file).run().await;
    outcome.sentence(5);
    assert_eq!(outcome.stdout, "0 imported, 1 rejected, 2 lines were done before\n");
}

/// It would reject all lines, and they would count as done.
#[tokio::test]
async fn a_mistake_in_a_constant_argument_is_refused_before_the_import_is_known() {
    let db = TestDb::new().await;
    let input = Input::new("{\"t\":\"a.b\",\"n\":1}\n");
    for (arguments, member) in [
        ("--type Order.Created --resource-kind x", "member type "),
        ("--type-pointer /t --type-prefix Order. --resource-kind x", "member type "),
        ("--type a.b --resource-kind=", "member resource_kind "),
        (
            "--type-pointer /t --resource-kind-pointer /t --receive-action self",
            "member audience_principal_id ",
        ),
        ("--type a.b --resource-kind-pointer /t --schema-version 0", "member schema_version "),
        ("--type a.b --resource-kind x --actor-kind user", "member actor_principal_id "),
        ("--type a.b --resource-kind x --space \u{7}", "member space_id "),
    ] {
        let import = on(&db, Role::App, ["import"]).arg(&input.file).args(arguments.split(' '));
        let sentence = import.refused(4).await;
        assert!(sentence.starts_with(member), "{arguments}: {sentence}");
    }
    import(&db, &input.file).ok().await;
    assert_eq!(numbers(&db).await, [1]);
}

#[tokio::test]
async fn a_name_that_is_empty_or_too_long_is_refused() {
    let db = TestDb::new().await;
    let input = Input::numbered(1);
    let too_long = "\u{e4}".repeat(513);
    for name in ["", &too_long] {
        let sentence = import(&db, &input.file).args(["--name", name]).refused(2).await;
        assert_eq!(sentence, "--name must have 1 to 512 characters");
    }
    import(&db, &input.file).args(["--name", &too_long[2..]]).ok().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named() {
    let db = TestDb::new().await;
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.ndjson");
    let sentence = import(&db, &missing).refused(3).await;
    assert!(sentence.starts_with(&format!("cannot read {}: ", missing.display())), "{sentence}");
    let sentence = import(&db, folder.path()).refused(3).await;
    assert!(sentence.starts_with(&format!("cannot read {}: ", folder.path().display())), "{sentence}");
}
