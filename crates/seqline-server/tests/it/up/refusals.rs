//! What keeps `up` from starting: one sentence each, and nothing half done.

use std::net::TcpListener;

use super::{Place, assert_no_server};

#[tokio::test]
async fn a_port_in_use_is_named() {
    let place = Place::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let sentence = place.up().args(["--port", &port.to_string()]).refused(3).await;
    let expected =
        format!("port {port} on 127.0.0.1 is already in use; choose another port, or none to get a free one");
    assert_eq!(sentence, expected);
    assert!(!place.data().exists() && !place.ready_file().exists());
}

/// The exit code says that versions do not fit: trying again does not help.
#[tokio::test]
async fn data_of_another_major_version_is_left_alone() {
    let place = Place::new();
    let cluster = place.data().join("pgdata");
    std::fs::create_dir_all(&cluster).unwrap();
    std::fs::write(cluster.join("PG_VERSION"), "9\n").unwrap();
    let sentence = place.up().refused(4).await;
    assert!(sentence.contains("belongs to PostgreSQL 9, but the binaries in "), "{sentence}");
    assert!(sentence.contains("--pg-bin"), "{sentence}");
    let left: Vec<_> = std::fs::read_dir(&cluster).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["PG_VERSION"]);
    assert!(!place.ready_file().exists());
}

#[tokio::test]
async fn a_folder_that_holds_something_else_is_left_alone() {
    let place = Place::new();
    std::fs::create_dir(place.data()).unwrap();
    std::fs::write(place.data().join("notes.txt"), "mine").unwrap();
    let sentence = place.up().refused(4).await;
    assert!(
        sentence.contains("is not empty and was not made by seqline (it holds `notes.txt`)"),
        "{sentence}"
    );
    assert_eq!(std::fs::read_dir(place.data()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_folder_for_binaries_without_them_is_named() {
    let place = Place::new();
    let empty = tempfile::tempdir().unwrap();
    let sentence = place.up_without_binaries().arg("--pg-bin").arg(empty.path()).refused(3).await;
    let named = format!("--pg-bin names {}, which has no program `postgres`", empty.path().display());
    assert!(sentence.starts_with(&named), "{sentence}");
    assert!(!place.data().exists() && !place.ready_file().exists());
}

#[tokio::test]
async fn a_machine_without_postgresql_is_told_what_to_install() {
    let place = Place::new();
    let nowhere = place.0.path().join("nowhere");
    let sentence =
        place.up_without_binaries().env("PATH", "").env("SEQLINE_PG_BIN", &nowhere).refused(3).await;
    let named = format!("SEQLINE_PG_BIN names {}, which has no program `postgres`", nowhere.display());
    assert!(sentence.starts_with(&named), "{sentence}");
    assert!(sentence.contains("install"), "{sentence}");
    assert!(!place.data().exists() && !place.ready_file().exists());
}

#[tokio::test]
async fn a_ready_file_that_cannot_be_written_is_named_and_nothing_keeps_running() {
    let place = Place::new();
    let nowhere = place.0.path().join("no such folder/ready.json");
    let binaries = seqline::embedded::PostgresBinaries::find(None).unwrap();
    let outcome = crate::support::seqline(["up", "--data-dir"])
        .arg(place.data())
        .arg("--ready-file")
        .arg(&nowhere)
        .arg("--pg-bin")
        .arg(binaries.dir())
        .run()
        .await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(3), ""), "{outcome:?}");
    let last = outcome.stderr.lines().last().unwrap();
    assert!(last.starts_with(&format!("seqline: cannot write {}: ", nowhere.display())), "{outcome:?}");
    assert!(!outcome.stderr.contains("Ready"), "{outcome:?}");
    assert_no_server(&place.data());
    assert!(!place.data().join("url").exists(), "the file with the password was left");
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let binaries = seqline::embedded::PostgresBinaries::find(None).unwrap();
    let below = file.path().join("data");
    let up = crate::support::seqline(["up", "--data-dir"]).arg(&below).arg("--pg-bin").arg(binaries.dir());
    let sentence = up.refused(3).await;
    assert!(
        sentence.starts_with(&format!("the data folder {} cannot be written ", below.display())),
        "{sentence}"
    );
}
