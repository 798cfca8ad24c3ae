//! A database per test, with logins that may do no more than the product needs.
//!
//! The first test that asks pays for one migration; every further database is a copy of it. Databases rather
//! than schemas, because notifications and advisory locks are per database.

use std::sync::{Arc, OnceLock};

use anyhow::Context;
use seqline::settings::{Sequencing, set_sequencing};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection};
use uuid::Uuid;

use crate::pooler::{self, Pooler};
use crate::sequencing::{self, Sequenced};
use crate::server::{TestServer, must};

/// The migrated database that others are copies of.
const TEMPLATE: &str = "seqline_template";

/// Connections of a pool, if the test does not say how many.
const POOL_SIZE: u32 = 5;

/// Who connects to a test database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The superuser. For setting up and for looking; what is tested runs as one of the others.
    Admin,
    /// A member of `seqline_app`, which may also make its own tables in the schema `public`.
    App,
    /// A member of `seqline_producer`: may append.
    Producer,
    /// A member of `seqline_reader`: may read.
    Reader,
    /// A member of `seqline_consumer`, which may also make its own tables in the schema `public`: may poll.
    Consumer,
    /// A login without any right.
    Nobody,
    /// A member of `seqline_app`: the [sequencer](crate::sequencing) of a database, so that nobody takes it for the application.
    Sequencer,
}

impl Role {
    /// All but the superuser.
    pub(crate) const LOGINS: [Role; 6] =
        [Role::App, Role::Producer, Role::Reader, Role::Consumer, Role::Nobody, Role::Sequencer];

    /// The name it logs in with.
    pub fn login(self) -> &'static str {
        match self {
            Role::Admin => "postgres",
            Role::App => "seqline_test_app",
            Role::Producer => "seqline_test_producer",
            Role::Reader => "seqline_test_reader",
            Role::Consumer => "seqline_test_consumer",
            Role::Nobody => "seqline_test_none",
            Role::Sequencer => "seqline_test_sequencer",
        }
    }

    /// The role of the product it is a member of.
    fn group(self) -> Option<&'static str> {
        match self {
            Role::App | Role::Sequencer => Some("seqline_app"),
            Role::Producer => Some("seqline_producer"),
            Role::Reader => Some("seqline_reader"),
            Role::Consumer => Some("seqline_consumer"),
            Role::Admin | Role::Nobody => None,
        }
    }
}

/// A database that belongs to one test. Dropping it drops the database, in the background.
#[derive(Debug)]
pub struct TestDb {
    name: String,
    admin: PgConnectOptions,
    admin_url: String,
    port: u16,
    login_password: String,
    pools: [OnceLock<PgPool>; 7],
    sequenced: Option<Arc<Sequenced>>,
    /// Through which pools go.
    pooler: Option<Arc<Pooler>>,
}

impl TestDb {
    /// A migrated database on the shared server. It numbers events as the [environment](crate::sequencing) says.
    ///
    /// # Panics
    ///
    /// If it cannot be made; says why. So do the other constructors.
    pub async fn new() -> TestDb {
        TestDb::on(TestServer::shared().await).await
    }

    /// As [`new`](Self::new), but it numbers inside COMMIT whatever the environment says: for tests of just that, and for those that
    /// change how it numbers, or run sequencers themselves.
    pub async fn at_commit() -> TestDb {
        TestDb::numbering(TestServer::shared().await, Sequencing::AtCommit).await
    }

    /// As [`new`](Self::new), but it numbers after commit whatever the environment says.
    pub async fn after_commit() -> TestDb {
        TestDb::numbering(TestServer::shared().await, Sequencing::AfterCommit).await
    }

    /// A database without the product on the shared server, to test the migration itself.
    pub async fn empty() -> TestDb {
        TestDb::empty_on(TestServer::shared().await).await
    }

    /// A migrated database on a server of one's own. It numbers events as the [environment](crate::sequencing) says.
    pub async fn on(server: &TestServer) -> TestDb {
        TestDb::numbering(server, sequencing::chosen()).await
    }

    /// A migrated database on a server of one's own that numbers events in this way.
    pub async fn numbering(server: &TestServer, sequencing: Sequencing) -> TestDb {
        must(async {
            prepare_logins(server).await?;
            server.template.get_or_try_init(|| make_template(server)).await?;
            let mut db = TestDb::named(server);
            db.pooler = pooler::chosen(server).await?;
            let alone = server.copying.lock().await;
            let strategy = server.copy_strategy;
            create(server, &format!("CREATE DATABASE {} TEMPLATE {TEMPLATE} {strategy}", db.name)).await?;
            drop(alone);
            let mut connection = server.connect_as_admin(&db.name).await?;
            make_log_its_own(&mut connection).await?;
            if sequencing == Sequencing::AfterCommit {
                set_sequencing(&mut connection, sequencing, None).await.context("number after commit")?;
                // The first decision in it shall be the test's.
                execute(&mut connection, "DELETE FROM seqline.audit_log").await?;
                let (admin, sequencer) = (db.options(Role::Admin), db.options(Role::Sequencer));
                db.sequenced = Some(Sequenced::start(&db.name, admin, sequencer));
            }
            Ok(db)
        })
        .await
    }

    /// A database without the product on a server of one's own.
    pub async fn empty_on(server: &TestServer) -> TestDb {
        must(async {
            prepare_logins(server).await?;
            let db = TestDb::named(server);
            create(server, &format!("CREATE DATABASE {}", db.name)).await?;
            let mut connection = server.connect_as_admin(&db.name).await?;
            open_public_schema(&mut connection).await?;
            Ok(db)
        })
        .await
    }

    /// A copy of a database of this server, as `CREATE DATABASE .. TEMPLATE ..` makes it. Connections to that one are ended.
    pub async fn copy_of(original: &TestDb, server: &TestServer) -> TestDb {
        must(async {
            let db = TestDb::named(server);
            original.pools.iter().filter_map(OnceLock::get).for_each(|pool| drop(pool.close()));
            let others = format!(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{}'",
                original.name
            );
            create(server, &others).await?;
            create(server, &format!("CREATE DATABASE {} TEMPLATE {}", db.name, original.name)).await?;
            Ok(db)
        })
        .await
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The superuser's pool.
    pub fn admin(&self) -> PgPool {
        self.shared_pool(Role::Admin)
    }

    /// The pool of the application.
    pub fn app(&self) -> PgPool {
        self.shared_pool(Role::App)
    }

    /// The pool of a producer.
    pub fn producer(&self) -> PgPool {
        self.shared_pool(Role::Producer)
    }

    /// The pool of a reader.
    pub fn reader(&self) -> PgPool {
        self.shared_pool(Role::Reader)
    }

    /// The pool of a consumer.
    pub fn consumer(&self) -> PgPool {
        self.shared_pool(Role::Consumer)
    }

    /// The pool of a login without rights.
    pub fn nobody(&self) -> PgPool {
        self.shared_pool(Role::Nobody)
    }

    /// A pool of the application's own size.
    pub fn app_pool(&self, max_connections: u32) -> PgPool {
        self.pool(Role::App, max_connections)
    }

    /// A new pool. It connects when it is first used. It goes through a pooler if the [environment](crate::pooler) says so, but for the
    /// superuser's.
    pub fn pool(&self, role: Role, max_connections: u32) -> PgPool {
        let options = match &self.pooler {
            Some(pooler) if role != Role::Admin => pooler.through(&self.options(role)),
            _ => self.options(role),
        };
        PgPoolOptions::new().max_connections(max_connections).connect_lazy_with(options)
    }

    /// How to connect to the server itself.
    pub fn options(&self, role: Role) -> PgConnectOptions {
        match role {
            Role::Admin => self.admin.clone(),
            login => self.admin.clone().username(login.login()).password(&self.login_password),
        }
    }

    /// The same as a URL, for other processes.
    pub fn url(&self, role: Role) -> String {
        match role {
            Role::Admin => self.admin_url.clone(),
            login => format!(
                "postgres://{}:{}@127.0.0.1:{}/{}?sslmode=disable",
                login.login(),
                self.login_password,
                self.port,
                self.name
            ),
        }
    }

    /// A connection of one's own.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub async fn connect(&self, role: Role) -> PgConnection {
        must(async {
            let connected = PgConnection::connect_with(&self.options(role)).await;
            connected.with_context(|| format!("connect to {} as {}", self.name, role.login()))
        })
        .await
    }

    /// Waits until everything that has been committed is in the log, and listeners were told of it. Returns at once where events are
    /// numbered inside COMMIT.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub async fn settled(&self) {
        if let Some(sequenced) = &self.sequenced {
            sequenced.settled().await;
        }
    }

    /// Makes the logins members of the product's roles. Only for a database that a test migrated by itself;
    /// membership holds on the whole server.
    ///
    /// # Panics
    ///
    /// If a role of the product is missing.
    pub async fn grant_roles(&self) {
        must(async { grant_groups(&mut self.connect(Role::Admin).await).await }).await;
    }

    fn named(server: &TestServer) -> TestDb {
        let name = format!("test_{}", Uuid::new_v4().simple());
        TestDb {
            admin: server.admin_options().database(&name),
            admin_url: server.postgres().admin_url().replace("/postgres?", &format!("/{name}?")),
            port: server.postgres().port(),
            login_password: server.login_password.clone(),
            pools: Default::default(),
            sequenced: None,
            pooler: None,
            name,
        }
    }

    fn shared_pool(&self, role: Role) -> PgPool {
        self.pools[role as usize].get_or_init(|| self.pool(role, POOL_SIZE)).clone()
    }
}

impl Drop for TestDb {
    /// On a thread of its own, because the test's runtime may be at its end. What is left when the process ends
    /// goes with the server.
    fn drop(&mut self) {
        let options = self.admin.clone().database("postgres");
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let work = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            // The server may be gone already, and the database with it.
            let _ = runtime.block_on(async {
                let mut connection = PgConnection::connect_with(&options).await?;
                execute(&mut connection, &statement).await
            });
        };
        let _ = std::thread::Builder::new().name("drop-test-db".into()).spawn(work);
    }
}

async fn prepare_logins(server: &TestServer) -> anyhow::Result<()> {
    let make = || async {
        let mut connection = server.connect_as_admin("postgres").await?;
        for role in Role::LOGINS {
            let statement =
                format!("CREATE ROLE {} LOGIN PASSWORD '{}'", role.login(), server.login_password);
            execute(&mut connection, &statement).await.context("make the test logins")?;
        }
        anyhow::Ok(())
    };
    server.logins.get_or_try_init(make).await?;
    Ok(())
}

async fn make_template(server: &TestServer) -> anyhow::Result<()> {
    create(server, &format!("DROP DATABASE IF EXISTS {TEMPLATE} WITH (FORCE)")).await?;
    create(server, &format!("CREATE DATABASE {TEMPLATE}")).await?;
    let mut connection = server.connect_as_admin(TEMPLATE).await?;
    seqline::migrate::migrate(&mut connection).await.context("migrate the template database")?;
    open_public_schema(&mut connection).await?;
    grant_groups(&mut connection).await?;
    connection.close().await?;
    // A connection would block every copy.
    create(server, &format!("ALTER DATABASE {TEMPLATE} WITH ALLOW_CONNECTIONS false")).await
}

/// The log of a copied database says that it belongs to the template, and refuses to go on once somebody looks.
async fn make_log_its_own(connection: &mut PgConnection) -> anyhow::Result<()> {
    let statement = "UPDATE seqline.log_identity SET log_id = gen_random_uuid(), epoch = gen_random_uuid(), \
                     database_oid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())";
    execute(connection, statement).await.context("give the copied log its own identity")
}

async fn open_public_schema(connection: &mut PgConnection) -> anyhow::Result<()> {
    let (app, consumer) = (Role::App.login(), Role::Consumer.login());
    let statement = format!("GRANT USAGE, CREATE ON SCHEMA public TO {app}, {consumer}");
    execute(connection, &statement).await.context("open the schema public to the application")
}

async fn grant_groups(connection: &mut PgConnection) -> anyhow::Result<()> {
    for role in Role::LOGINS {
        let Some(group) = role.group() else { continue };
        let statement = format!("GRANT {group} TO {}", role.login());
        execute(connection, &statement).await.with_context(|| format!("grant {group}"))?;
    }
    Ok(())
}

async fn create(server: &TestServer, statement: &str) -> anyhow::Result<()> {
    let mut connection = server.connect_as_admin("postgres").await?;
    execute(&mut connection, statement).await.with_context(|| statement.to_owned())?;
    Ok(connection.close().await?)
}

/// Runs a statement that was put together from names of this module only.
async fn execute(connection: &mut PgConnection, statement: &str) -> anyhow::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}
