//! The measurements. Each prints a small table.

use std::time::Duration;

use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::{Role, TestDb, TestServer};

use crate::load::{Load, Work, create_business_table, event};
use crate::measuring::now;

const REPEATS: usize = 3;
const WRITERS: u32 = 8;
const WARM_UP: Duration = Duration::from_secs(2);

/// One transaction with many appends must cost the same per event whatever their number.
pub(crate) async fn one_transaction(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    println!("one transaction with n appends, one call each (medians of {REPEATS})");
    println!("{:>10}  {:>14}  {:>14}  {:>12}", "n", "us per append", "us per commit", "commit ms");
    for n in [1_000_u32, 10_000, 100_000] {
        let (mut appends, mut commits) = (Samples::default(), Samples::default());
        for _ in 0..REPEATS {
            let db = TestDb::on(server).await;
            let mut connection = db.connect(Role::App).await;
            sqlx::raw_sql("BEGIN").execute(&mut connection).await?;
            let start = now();
            // On the server, so that the client's round trips are not counted.
            let calls = format!(
                "DO $$ BEGIN FOR n IN 1..{n} LOOP PERFORM seqline.append('order.created', '{{\"order\": 17, \"customer\": \"Alex\"}}', 'order', 'any', resource_id => '17'); END LOOP; END $$"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(calls)).execute(&mut connection).await?;
            appends.push(start.elapsed().as_secs_f64());
            let start = now();
            sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
            commits.push(start.elapsed().as_secs_f64());
        }
        report.figure(format!("one transaction with {n} appends: the appends"), "s", &appends);
        report.figure(format!("one transaction with {n} appends: COMMIT"), "s", &commits);
        let (append, commit) = (appends.median(), commits.median());
        let each = |seconds: f64| seconds * 1e6 / f64::from(n);
        println!("{n:>10}  {:>14.1}  {:>14.1}  {:>12.1}", each(append), each(commit), commit * 1e3);
    }
    println!();
    Ok(())
}

/// While a large transaction is being filled others go on; only its COMMIT makes them wait.
pub(crate) async fn others_during_a_large_transaction(
    server: &TestServer,
    report: &mut Report,
) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let (large, other) = (db.app_pool(1), db.app_pool(1));
    let event = event();
    let longest = async |until: &tokio::sync::watch::Receiver<bool>| -> anyhow::Result<f64> {
        let mut longest = 0_f64;
        while !*until.borrow() {
            let start = now();
            let mut tx = seqline::begin(&other).await?;
            seqline::append(&mut tx, std::slice::from_ref(&event)).await?;
            seqline::commit(tx).await?;
            longest = longest.max(start.elapsed().as_secs_f64());
        }
        Ok(longest)
    };
    warm_up(&longest).await?;

    let events = vec![event.clone(); 1_000];
    let mut tx = seqline::begin(&large).await?;
    let (done, until) = tokio::sync::watch::channel(false);
    let fill = async {
        for _ in 0..100 {
            seqline::append(&mut tx, &events).await?;
        }
        done.send_replace(true);
        anyhow::Ok(())
    };
    let (while_filling, filled) = tokio::join!(longest(&until), fill);
    filled?;
    let (done, until) = tokio::sync::watch::channel(false);
    let commit = async {
        let start = now();
        seqline::commit(tx).await?;
        done.send_replace(true);
        anyhow::Ok(start.elapsed().as_secs_f64())
    };
    let (while_committing, commit) = tokio::join!(longest(&until), commit);
    let (while_filling, while_committing) = (while_filling? * 1e3, while_committing? * 1e3);
    report.single("slowest transaction while a large one appends", "ms", while_filling);
    report.single("slowest transaction while a large one commits", "ms", while_committing);
    println!("another appender beside one transaction with 100,000 events, its slowest transaction");
    println!("  while events are appended  {while_filling:>8.1} ms");
    println!(
        "  while it commits           {while_committing:>8.1} ms (the COMMIT takes {:.1} ms)\n",
        commit? * 1e3
    );
    Ok(())
}

/// Warm up the connection, its plans and caches.
async fn warm_up<F>(longest: &F) -> anyhow::Result<()>
where
    F: AsyncFn(&tokio::sync::watch::Receiver<bool>) -> anyhow::Result<f64>,
{
    let (done, until) = tokio::sync::watch::channel(false);
    let stop = async {
        seqline::Clock::system().sleep(Duration::from_millis(500)).await;
        done.send_replace(true);
    };
    tokio::join!(longest(&until), stop).0.map(drop)
}

/// The price of an event over the business transaction alone.
pub(crate) async fn rates(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    println!("one business UPDATE per transaction, transactions/s (medians of {REPEATS}, interleaved)");
    println!("{:>8}  {:>12}  {:>18}  {:>6}", "writers", "UPDATE alone", "UPDATE and append", "ratio");
    let db = TestDb::on(server).await;
    create_business_table(&db).await?;
    for writers in [1, 8, 32] {
        let (mut alone, mut both) = (Samples::default(), Samples::default());
        for _ in 0..REPEATS {
            for (work, rates) in [(Work::UpdateOnly, &mut alone), (Work::UpdateAndAppend, &mut both)] {
                let load = Load::start(&db, writers, work);
                load.rate(WARM_UP).await;
                rates.push(load.rate(duration / REPEATS as u32).await);
                load.stop().await?;
            }
        }
        report.figure(format!("UPDATE alone, {writers} writers"), "transactions/s", &alone);
        report.figure(format!("UPDATE and append, {writers} writers"), "transactions/s", &both);
        let (alone, both) = (alone.median(), both.median());
        println!("{writers:>8}  {alone:>12.0}  {both:>18.0}  {:>6.2}", both / alone);
    }
    println!();
    Ok(())
}

/// The number of partitions must not matter.
pub(crate) async fn many_partitions(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let few = TestDb::on(server).await;
    let many = TestDb::on(server).await;
    for (db, ahead) in [(&few, 6), (&many, 300)] {
        create_business_table(db).await?;
        sqlx::query("SELECT seqline.sync_event_log_ensure_partitions(1000000, $1, 0)")
            .bind(ahead)
            .execute(&db.app())
            .await?;
    }
    let count = async |db: &TestDb| -> anyhow::Result<usize> {
        Ok(seqline::maintenance::partitions(&mut db.connect(Role::App).await).await?.len())
    };
    let (mut of_few, mut of_many) = (Samples::default(), Samples::default());
    for _ in 0..REPEATS {
        for (db, rates) in [(&few, &mut of_few), (&many, &mut of_many)] {
            let load = Load::start(db, WRITERS, Work::UpdateAndAppend);
            load.rate(WARM_UP).await;
            rates.push(load.rate(duration / REPEATS as u32).await);
            load.stop().await?;
        }
    }
    report.figure("UPDATE and append with few partitions", "transactions/s", &of_few);
    report.figure("UPDATE and append with many partitions", "transactions/s", &of_many);
    let (with_few, with_many) = (of_few.median(), of_many.median());
    println!("{WRITERS} writers, UPDATE and append, transactions/s (medians of {REPEATS}, interleaved)");
    println!("  {:>4} partitions  {with_few:>8.0}", count(&few).await?);
    println!(
        "  {:>4} partitions  {with_many:>8.0}  ({:.0} percent)\n",
        count(&many).await?,
        with_many / with_few * 100.0
    );
    Ok(())
}

/// A snapshot that somebody holds keeps dead rows; the rate must not fall with their number.
pub(crate) async fn held_snapshot(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    const STEPS: u32 = 6;
    let db = TestDb::on(server).await;
    create_business_table(&db).await?;
    sqlx::raw_sql("VACUUM seqline.pending_events, seqline.pending_transactions").execute(&db.admin()).await?;
    let load = Load::start(&db, WRITERS, Work::AppendOnly);
    load.rate(WARM_UP).await;
    let free = load.rate(duration / STEPS).await;
    load.stop().await?;

    let mut reader = db.connect(Role::App).await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM orders")
        .execute(&mut reader)
        .await?;
    // New sessions, whose plans are made on empty, vacuumed tables.
    let load = Load::start(&db, WRITERS, Work::AppendOnly);
    println!(
        "{WRITERS} writers, append alone, while a snapshot is held for {} s, transactions/s",
        duration.as_secs()
    );
    println!("  without it          {free:>8.0}");
    report.single("append alone, no snapshot held", "transactions/s", free);
    let mut held = Samples::default();
    for step in 1..=STEPS {
        let rate = load.rate(duration / STEPS).await;
        held.push(rate);
        println!("  up to second {:>4}   {rate:>8.0}", (duration * step / STEPS).as_secs());
    }
    report.figure("append alone while a snapshot is held, step by step", "transactions/s", &held);
    sqlx::raw_sql("COMMIT").execute(&mut reader).await?;
    load.stop().await
}
