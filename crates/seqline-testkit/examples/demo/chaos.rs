//! Breaking things while the others work.

use std::time::Duration;

use seqline::Clock;
use seqline::tail::TAIL_APPLICATION_NAME;
use seqline_testkit::{Role, TestDb, TestServer};

use crate::writers::APPLICATION_NAME;

const PAUSE: Duration = Duration::from_millis(400);

/// What was broken.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    pub(crate) writers_terminated: i64,
    pub(crate) tails_terminated: i64,
    pub(crate) servers_killed: i64,
}

/// Terminates a writer every round and the tail's listener every third; in the middle kills the server and starts it
/// again.
pub(crate) async fn run(server: &mut TestServer, db: &TestDb, duration: Duration) -> anyhow::Result<Damage> {
    let clock = Clock::system();
    let begin = clock.elapsed();
    let mut damage = Damage::default();
    for round in 0.. {
        clock.sleep(PAUSE).await;
        let passed = clock.elapsed().saturating_sub(begin);
        if passed >= duration {
            break;
        }
        if passed >= duration / 2 && damage.servers_killed == 0 {
            server.kill().await;
            server.start_again().await;
            damage.servers_killed += 1;
            continue;
        }
        let mut admin = db.connect(Role::Admin).await;
        damage.writers_terminated += terminate(&mut admin, APPLICATION_NAME).await?;
        if round % 3 == 0 {
            damage.tails_terminated += terminate(&mut admin, TAIL_APPLICATION_NAME).await?;
        }
    }
    Ok(damage)
}

/// Terminates one backend with this name, if there is one.
async fn terminate(admin: &mut sqlx::PgConnection, application_name: &str) -> sqlx::Result<i64> {
    let terminated: Option<bool> = sqlx::query_scalar(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT 1",
    )
    .bind(application_name)
    .fetch_optional(admin)
    .await?;
    Ok(i64::from(terminated == Some(true)))
}
