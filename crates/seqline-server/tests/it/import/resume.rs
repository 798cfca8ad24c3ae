//! An import that ended in the middle goes on: no line is lost, none comes twice.

use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::PgConnection;
use tokio::io::AsyncWriteExt;

use super::{Counts, Input, assert_each_line_once, counts, import, numbered};
use crate::support::{DEADLINE, Sessions, WAITS_TO_NUMBER, as_admin, numbers, on, run_sql};

/// A session that [`hold_lines`] has stopped.
pub(super) const WAITS_FOR_THE_TEST: &str = "wait_event_type = 'Lock' AND wait_event = 'advisory'";

/// A session that waits for a lock of whatever kind.
const WAITS: &str = "wait_event_type = 'Lock'";

/// A connection that keeps every append from committing.
async fn hold_numbering(db: &TestDb) -> PgConnection {
    as_admin(db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 600000").await;
    let mut admin = db.connect(Role::Admin).await;
    run_sql(&mut admin, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    admin
}

/// A connection that stops imports, inside their transaction, at the lines for which the condition is true.
pub(super) async fn hold_lines(db: &TestDb, condition: &str) -> PgConnection {
    let mut admin = db.connect(Role::Admin).await;
    run_sql(
        &mut admin,
        &format!(
            "SELECT pg_advisory_lock(17);
             CREATE FUNCTION public.wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF {condition} THEN PERFORM pg_advisory_xact_lock_shared(17); END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER wait_for_the_test BEFORE INSERT ON seqline.import_ranges
                 FOR EACH ROW EXECUTE FUNCTION public.wait_for_the_test()"
        ),
    )
    .await;
    admin
}

async fn let_go(mut holder: PgConnection) {
    run_sql(&mut holder, "ROLLBACK; SELECT pg_advisory_unlock_all()").await;
}

#[tokio::test]
async fn killed_in_the_middle_it_goes_on_where_it_was() {
    let db = TestDb::new().await;
    let input = Input::numbered(1000);
    let holder = hold_lines(&db, "NEW.first_line > 500").await;
    let running = import(&db, &input.file).args(["--batch", "20"]).start();
    Sessions::of(&db, Role::App).reach(1, WAITS_FOR_THE_TEST).await;
    running.signal(Signal::SIGKILL);
    let outcome = running.end().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (None, ""));
    let_go(holder).await;
    Sessions::of(&db, Role::App).end().await;
    assert_eq!(numbers(&db).await, (1..=500).collect::<Vec<_>>());

    let outcome = import(&db, &input.file).args(["--batch", "30", "--json"]).run().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(counts(&outcome), Counts { imported: 500, rejected: 0, skipped: 500 });
    assert_eq!(numbers(&db).await, (1..=1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn killed_while_its_commits_wait_it_finds_out_which_of_them_went_through() {
    let db = TestDb::new().await;
    let input = Input::numbered(200);
    let holder = hold_numbering(&db).await;
    let running = import(&db, &input.file).args(["--batch", "10", "--writers", "4"]).start();
    Sessions::of(&db, Role::App).reach(4, WAITS_TO_NUMBER).await;
    running.signal(Signal::SIGKILL);
    running.end().await;
    let_go(holder).await;
    Sessions::of(&db, Role::App).end().await;
    let committed = numbers(&db).await.len() as i64;

    let outcome = import(&db, &input.file).args(["--batch", "10", "--json"]).run().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(counts(&outcome), Counts { imported: 200 - committed, rejected: 0, skipped: committed });
    assert_each_line_once(&db, 200).await;
}

/// The commits of a killed run go through when nobody watches any more, while the next run is on its way.
#[tokio::test]
async fn run_again_while_commits_of_a_killed_run_are_still_under_way_it_doubles_nothing() {
    let db = TestDb::new().await;
    let input = Input::numbered(60);
    let first_lines = hold_lines(&db, "NEW.last_line = 10").await;
    let commits = hold_numbering(&db).await;
    let running = import(&db, &input.file).args(["--batch", "10", "--writers", "2"]).start();
    // Lines 1 to 10 before their note, lines 11 to 20 in their COMMIT.
    Sessions::of(&db, Role::App).reach(1, WAITS_FOR_THE_TEST).await;
    Sessions::of(&db, Role::App).reach(1, WAITS_TO_NUMBER).await;
    running.signal(Signal::SIGKILL);
    running.end().await;

    let again = tokio::spawn(import(&db, &input.file).args(["--batch", "20"]).run());
    // Waiting or refused: both will do.
    let sessions = Sessions::of(&db, Role::App);
    eventually(DEADLINE, "the second run is at work", async || {
        again.is_finished() || sessions.count(WAITS).await >= 3
    })
    .await;
    let_go(commits).await;
    let_go(first_lines).await;
    again.await.unwrap();
    Sessions::of(&db, Role::App).end().await;
    // Whatever the second run made of it: a last one completes the import.
    import(&db, &input.file).run().await;
    assert_each_line_once(&db, 60).await;
}

#[tokio::test]
async fn the_same_import_twice_at_once_does_each_line_once_and_says_so() {
    let db = TestDb::new().await;
    let input = Input::numbered(200);
    let holder = hold_numbering(&db).await;
    let run = || tokio::spawn(import(&db, &input.file).args(["--batch", "10"]).run());
    let sessions = Sessions::of(&db, Role::App);
    let first = run();
    sessions.reach(1, WAITS_TO_NUMBER).await;
    let second = run();
    eventually(DEADLINE, "the second one waits for the first or is refused", async || {
        second.is_finished() || sessions.count(WAITS).await >= 2
    })
    .await;
    let_go(holder).await;
    for run in [first, second] {
        let outcome = run.await.unwrap();
        // Not 1, which means a bug.
        assert!(matches!(outcome.code(), Some(0 | 3 | 4)), "{outcome:?}");
    }
    import(&db, &input.file).ok().await;
    assert_each_line_once(&db, 200).await;
}

#[tokio::test]
async fn a_complete_import_is_not_done_again_and_says_so() {
    let db = TestDb::new().await;
    let input = Input::new(format!("{}nonsense\n", numbered(1, 99)));
    import(&db, &input.file).run().await.sentence(5);
    let outcome = import(&db, &input.file).run().await;
    assert_eq!(outcome.stdout, "0 imported, 0 rejected, 100 lines were done before (1 of them rejected)\n");
    assert_each_line_once(&db, 99).await;
    assert_eq!(input.rejects().len(), 1);
}

#[tokio::test]
async fn lines_that_an_earlier_run_rejected_are_not_forgotten() {
    let db = TestDb::new().await;
    let input = Input::new(format!("x\nx\n{}", numbered(1, 2)));
    let sentence = import(&db, &input.file).run().await.sentence(5);
    assert_eq!(sentence, format!("rejected lines and reasons are in {}.rejected", input.file.display()));
    std::fs::write(&input.file, format!("x\nx\n{}", numbered(1, 5))).unwrap();
    let outcome = import(&db, &input.file).arg("--json").run().await;
    assert_eq!(outcome.sentence(5), sentence);
    assert_eq!(counts(&outcome), Counts { imported: 3, rejected: 0, skipped: 4 });
    assert!(outcome.stdout.contains("\"rejected_before\":2"), "{outcome:?}");
}

#[tokio::test]
async fn a_file_that_has_grown_gets_its_new_lines_imported() {
    let db = TestDb::new().await;
    let input = Input::numbered(30);
    import(&db, &input.file).ok().await;
    std::fs::write(&input.file, numbered(1, 50)).unwrap();
    assert_eq!(import(&db, &input.file).ok().await, "20 imported, 0 rejected, 30 lines were done before\n");
    assert_each_line_once(&db, 50).await;
}

#[tokio::test]
async fn another_file_under_the_name_of_an_import_is_refused() {
    let db = TestDb::new().await;
    let input = Input::numbered(30);
    import(&db, &input.file).ok().await;
    std::fs::write(&input.file, numbered(2, 31)).unwrap();
    let sentence = import(&db, &input.file).refused(4).await;
    let name = input.file.canonicalize().unwrap();
    let expected =
        format!("the import {} began with another file: give --name to start a new import", name.display());
    assert_eq!(sentence, expected);
    assert_each_line_once(&db, 30).await;
    import(&db, &input.file).args(["--name", "the second file"]).ok().await;
    assert_eq!(numbers(&db).await.len(), 60);
}

/// The fingerprint grows with the file, or an empty one would fit everything.
#[tokio::test]
async fn another_file_is_refused_even_when_the_import_began_with_an_empty_one() {
    let db = TestDb::new().await;
    let input = Input::new("");
    import(&db, &input.file).ok().await;
    std::fs::write(&input.file, numbered(1, 30)).unwrap();
    assert_eq!(import(&db, &input.file).ok().await, "30 imported, 0 rejected\n");
    std::fs::write(&input.file, numbered(31, 60)).unwrap();
    let sentence = import(&db, &input.file).refused(4).await;
    assert!(sentence.contains("began with another file"), "{sentence}");
    std::fs::write(&input.file, numbered(1, 40)).unwrap();
    import(&db, &input.file).ok().await;
    assert_each_line_once(&db, 40).await;
}

/// The process that makes the file of a day has truncated it and goes on with other lines.
#[tokio::test]
async fn lines_that_have_come_later_belong_to_the_fingerprint() {
    let db = TestDb::new().await;
    let input = Input::numbered(10);
    import(&db, &input.file).ok().await;
    std::fs::write(&input.file, numbered(1, 20)).unwrap();
    import(&db, &input.file).ok().await;
    std::fs::write(&input.file, format!("{}{}", numbered(1, 10), numbered(31, 60))).unwrap();
    import(&db, &input.file).refused(4).await;
    assert_each_line_once(&db, 20).await;
}

#[tokio::test]
async fn standard_input_with_a_name_can_be_resumed_and_without_one_starts_anew() {
    let db = TestDb::new().await;
    for (given, said) in
        [(50, "50 imported, 0 rejected\n"), (80, "30 imported, 0 rejected, 50 lines were done before\n")]
    {
        let named = import(&db, "-").args(["--name", "feed"]).stdin(numbered(1, given));
        assert_eq!(named.ok().await, said);
    }
    assert_each_line_once(&db, 80).await;
    for _ in 0..2 {
        assert_eq!(import(&db, "-").stdin(numbered(1, 10)).ok().await, "10 imported, 0 rejected\n");
    }
    assert_eq!(numbers(&db).await.len(), 100);
}

#[tokio::test]
async fn interrupted_it_finishes_what_it_has_begun_and_can_go_on() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let db = TestDb::new().await;
        let input = Input::numbered(1000);
        let holder = hold_lines(&db, "NEW.first_line > 100").await;
        let running = import(&db, &input.file).args(["--batch", "20", "--json"]).start();
        Sessions::of(&db, Role::App).reach(1, WAITS_FOR_THE_TEST).await;
        running.signal(signal);
        let_go(holder).await;
        let outcome = running.end().await;
        assert_eq!(outcome.sentence(130), "interrupted: run the same command again to go on");
        let done = counts(&outcome).imported;
        assert!((100..1000).contains(&done), "{outcome:?}");
        assert_each_line_once(&db, done).await;

        let outcome = import(&db, &input.file).arg("--json").run().await;
        assert_eq!(counts(&outcome), Counts { imported: 1000 - done, rejected: 0, skipped: done });
        assert_eq!(numbers(&db).await, (1..=1000).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn interrupted_while_it_waits_for_input_it_ends() {
    let db = TestDb::new().await;
    let (running, mut stdin) = import(&db, "-").args(["--batch", "1"]).start_with_stdin();
    stdin.write_all(numbered(1, 3).as_bytes()).await.unwrap();
    eventually(DEADLINE, "the lines are imported", async || numbers(&db).await.len() == 3).await;
    running.signal(Signal::SIGINT);
    let outcome = running.end().await;
    assert_eq!(
        outcome.sentence(130),
        "interrupted: 3 lines are in the log, and an import of standard input without --name cannot be resumed"
    );
    assert_eq!(outcome.stdout, "3 imported, 0 rejected\n");
    assert_each_line_once(&db, 3).await;
}

#[tokio::test]
async fn interrupted_while_it_waits_for_the_beginning_of_the_input_it_ends() {
    let db = TestDb::new().await;
    let (running, _stdin) = import(&db, "-").args(["--name", "feed"]).start_with_stdin();
    let asks = "state = 'idle' AND query LIKE '%FROM seqline.imports%'";
    Sessions::of(&db, Role::App).reach(1, asks).await;
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().await.sentence(130), "interrupted before anything was imported");
}

#[tokio::test]
async fn interrupted_while_it_waits_to_take_over_it_ends() {
    let db = TestDb::new().await;
    let input = Input::numbered(3);
    import(&db, &input.file).ok().await;
    let mut admin = db.connect(Role::Admin).await;
    run_sql(&mut admin, "BEGIN; SELECT FROM seqline.imports FOR UPDATE").await;
    let running = import(&db, &input.file).start();
    Sessions::of(&db, Role::App).reach(1, WAITS).await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().await.sentence(130), "interrupted before anything was imported");
}

#[tokio::test]
async fn interrupted_while_its_last_lines_are_written_it_completes_what_it_has_begun_and_no_more() {
    let db = TestDb::new().await;
    let input = Input::numbered(3);
    let holder = hold_lines(&db, "true").await;
    let running = import(&db, &input.file).args(["--batch", "1"]).start();
    Sessions::of(&db, Role::App).reach(1, WAITS_FOR_THE_TEST).await;
    running.signal(Signal::SIGINT);
    // Without a sign from outside that the signal has arrived, any number of lines may be done.
    let_go(holder).await;
    let outcome = running.end().await;
    let done = numbers(&db).await.len() as i64;
    match outcome.code() {
        Some(130) => assert!((1..3).contains(&done), "{outcome:?}"),
        _ => assert_eq!((outcome.code(), done), (Some(0), 3), "{outcome:?}"),
    }
    import(&db, &input.file).ok().await;
    assert_each_line_once(&db, 3).await;
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let db = TestDb::new().await;
    let input = Input::numbered(100);
    let holder = hold_numbering(&db).await;
    let running = import(&db, &input.file).args(["--batch", "1"]).start();
    Sessions::of(&db, Role::App).reach(1, WAITS_TO_NUMBER).await;
    running.signal(Signal::SIGINT);
    running.signal(Signal::SIGTERM);
    let outcome = running.end().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(130), ""), "{outcome:?}");
    let_go(holder).await;
    Sessions::of(&db, Role::App).end().await;
    import(&db, &input.file).ok().await;
    assert_each_line_once(&db, 100).await;
}

#[tokio::test]
async fn a_role_that_may_only_append_is_told_that_an_import_needs_more() {
    let db = TestDb::new().await;
    let input = Input::numbered(3);
    let sentence = on(&db, Role::Producer, ["import"])
        .arg(&input.file)
        .args(["--type", "a.b", "--resource-kind", "x"])
        .refused(4)
        .await;
    assert!(sentence.contains("grant this role seqline_app"), "{sentence}");
    assert!(numbers(&db).await.is_empty());
}
