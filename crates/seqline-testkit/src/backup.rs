//! Backups of a test server, and what people do with them: restore in place, recover elsewhere, load a dump into another cluster.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, ensure};
use seqline::embedded::{PostgresBinaries, PostgresServer, ServerConfig};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tempfile::TempDir;
use tokio::process::Command;

use crate::db::{Role, TestDb};
use crate::server::{SETTINGS, TestServer, must};
use crate::wait::eventually;

/// How long a recovery may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// Where a server of the library keeps its password, and its cluster.
const PASSWORD: &str = "seqline.password";
const CLUSTER: &str = "pgdata";

/// A base backup. It is gone when it is dropped; servers that were made from it stay.
#[derive(Debug)]
pub struct Backup {
    folder: TempDir,
}

/// A server that was made from a backup. It is gone, with its data, when it is dropped.
#[derive(Debug)]
pub struct Restored {
    postgres: PostgresServer,
}

impl Backup {
    /// Takes one, of a server that goes on.
    ///
    /// # Panics
    ///
    /// If that is not possible; the program `pg_basebackup` is needed beside `postgres`.
    pub async fn take(server: &TestServer) -> Backup {
        must(async {
            let folder =
                tempfile::Builder::new().prefix("seqline-test-").tempdir().context("make a folder")?;
            copy_cluster(server, &PostgresBinaries::find(None)?, folder.path(), Copied::AsItIs).await?;
            Ok(Backup { folder })
        })
        .await
    }

    /// Stops the server, puts the backup in the place of its data, and starts it again: the same server as before, some time ago.
    ///
    /// # Panics
    ///
    /// If that is not possible.
    pub async fn restore_in_place(&self, server: &mut TestServer) {
        server.stop().await;
        let cluster = server.postgres().data_dir().join(CLUSTER);
        must(async {
            let owner = cluster.metadata()?;
            fs::remove_dir_all(&cluster).context("remove the data")?;
            copy_folder(&self.cluster(), &cluster).await?;
            Ok(give(&cluster, owner.uid(), owner.gid())?)
        })
        .await;
        server.start_again().await;
    }

    /// Starts another server from it, which recovers and is promoted: on a timeline of its own.
    ///
    /// # Panics
    ///
    /// If that is not possible.
    pub async fn recover(&self) -> Restored {
        must(async {
            let binaries = PostgresBinaries::find(None)?;
            let folder =
                tempfile::Builder::new().prefix("seqline-test-").tempdir().context("make a folder")?;
            let owner = self.cluster().metadata()?;
            copy_folder(self.folder.path(), folder.path()).await?;
            fs::write(folder.path().join(CLUSTER).join("recovery.signal"), "")?;
            give(folder.path(), owner.uid(), owner.gid())?;
            // It has all of its log with it.
            let recovery = [("restore_command", "false"), ("recovery_target_action", "promote")];
            let settings = SETTINGS.iter().chain(&recovery);
            let config = ServerConfig {
                settings: settings.map(|(name, value)| (name.to_string(), value.to_string())).collect(),
                remove_data_on_exit: true,
                ..ServerConfig::new(binaries, folder.path())
            };
            let postgres = PostgresServer::start(config).await.context("start from a backup")?;
            // From here on the server removes it.
            let _ = folder.keep();
            // It answers before it has come to its end.
            let mut admin = PgConnection::connect_with(&postgres.admin_options()).await?;
            eventually(DEADLINE, "the end of a recovery", async || {
                let ended = "SELECT NOT pg_is_in_recovery()";
                sqlx::query_scalar(ended).fetch_one(&mut admin).await.is_ok_and(|ended| ended)
            })
            .await;
            Ok(Restored { postgres })
        })
        .await
    }

    fn cluster(&self) -> PathBuf {
        self.folder.path().join(CLUSTER)
    }
}

impl Restored {
    /// How to connect to it as the superuser, to the database `postgres`.
    pub fn admin_options(&self) -> PgConnectOptions {
        self.postgres.admin_options()
    }

    /// How to connect to it, when `options` are for the server of the backup: its roles and databases are the same.
    pub fn options(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.port(self.postgres.port())
    }

    /// A URL for other processes, when `url` is for the server of the backup.
    pub fn url(&self, url: &str, port_before: u16) -> String {
        url.replace(&format!(":{port_before}/"), &format!(":{}/", self.postgres.port()))
    }
}

/// Dumps a database and loads it into an empty one, which may be in another cluster. The roles of the product have to be there.
///
/// # Panics
///
/// If that is not possible; the programs `pg_dump` and `psql` are needed beside `postgres`.
pub async fn load_dump(from: &TestDb, into: &TestDb) {
    must(async {
        let binaries = PostgresBinaries::find(None)?;
        let dump = tempfile::NamedTempFile::new().context("make a file")?;
        let run = async |program: &str, db: &TestDb, file: &str| -> anyhow::Result<()> {
            let output = Command::new(binaries.dir().join(program))
                .args(["--no-password", "--dbname"])
                .arg(db.url(Role::Admin))
                .arg(file)
                .arg(dump.path())
                .args(if program == "psql" {
                    &["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1"][..]
                } else {
                    &[]
                })
                .env("LC_ALL", "C")
                .kill_on_drop(true)
                .output()
                .await;
            succeeded(program, output)
        };
        run("pg_dump", from, "--file").await?;
        run("psql", into, "--file").await
    })
    .await;
}

/// What a copy of a cluster is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    /// To be restored.
    AsItIs,
    /// To follow the server that it was copied from.
    Following,
}

/// Makes the folder that a server of the library keeps, with the cluster of another one in it.
pub(crate) async fn copy_cluster(
    primary: &TestServer,
    binaries: &PostgresBinaries,
    folder: &Path,
    copied: Copied,
) -> anyhow::Result<()> {
    let password =
        fs::read_to_string(primary.postgres().data_dir().join(PASSWORD)).context("read the password")?;
    let cluster = folder.join(CLUSTER);
    let output = Command::new(binaries.dir().join("pg_basebackup"))
        .args(["--host=127.0.0.1", "--username=postgres", "--checkpoint=fast", "--wal-method=stream"])
        .arg(format!("--port={}", primary.postgres().port()))
        .args((copied == Copied::Following).then_some("--write-recovery-conf"))
        .args(["--no-password", "--no-sync", "--pgdata"])
        .arg(&cluster)
        .env("PGPASSWORD", password.trim())
        .env("LC_ALL", "C")
        .kill_on_drop(true)
        .output()
        .await;
    succeeded("pg_basebackup", output)?;
    let file = folder.join(PASSWORD);
    fs::write(&file, password)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    // Run as root, a server belongs to somebody else.
    let owner = primary.postgres().data_dir().join(CLUSTER).metadata()?;
    if owner.uid() != cluster.metadata()?.uid() {
        give(folder, owner.uid(), owner.gid()).context("give the copy to the user of the server")?;
    }
    Ok(())
}

async fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    // What is in it, with everything that belongs to a file.
    let output = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).kill_on_drop(true).output().await;
    succeeded("cp", output)
}

fn succeeded(program: &str, output: std::io::Result<Output>) -> anyhow::Result<()> {
    let output = output.with_context(|| format!("run {program}"))?;
    ensure!(output.status.success(), "{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn give(path: &Path, uid: u32, gid: u32) -> std::io::Result<()> {
    lchown(path, Some(uid), Some(gid))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), uid, gid)?;
        }
    }
    Ok(())
}
