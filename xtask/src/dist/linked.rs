//! Which libraries a binary needs from the machine that it runs on.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::output;

/// Libraries by name, and the oldest C library of GNU that will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Linked {
    libraries: Vec<String>,
    glibc: Option<(u32, u32)>,
}

/// Asks `readelf`, which is beside every linker.
pub(super) fn of(binary: &Path) -> Result<Linked> {
    let mut readelf = Command::new("readelf");
    readelf.env("LC_ALL", "C").args(["--wide", "--dynamic", "--version-info"]).arg(binary);
    Ok(parse(&output(&mut readelf).context("failed to look at the binary: readelf is of binutils")?))
}

fn parse(text: &str) -> Linked {
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    let libraries = needed.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()));
    let versions = text.split("GLIBC_").skip(1).filter_map(|rest| {
        let version: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let mut parts = version.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    });
    Linked { libraries: libraries.collect::<BTreeSet<_>>().into_iter().collect(), glibc: versions.max() }
}

impl fmt::Display for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.libraries.is_empty() {
            return f.write_str("links     nothing: the binary is static");
        }
        write!(f, "links     {}", self.libraries.join(", "))?;
        match self.glibc {
            Some((major, minor)) => write!(f, "\nneeds     glibc {major}.{minor} or newer"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_says_how_old_the_library_may_be() {
        let text = "
Dynamic section at offset 0x2d10 contains 30 entries:
  Tag                Type           Name/Value
  0x0000000000000001 (NEEDED)       Shared library: [libgcc_s.so.1]
  0x0000000000000001 (NEEDED)       Shared library: [libc.so.6]
  0x000000000000001e (FLAGS)        BIND_NOW
Version needs section '.gnu.version_r' contains 2 entries:
 Addr: 0x0000000000000ad8  Offset: 0x00000ad8  Link: 5 (.dynstr)
  000000: Version: 1  File: libgcc_s.so.1  Cnt: 1
  0x0010:   Name: GCC_3.0  Flags: none  Version: 13
  0x0020: Version: 1  File: libc.so.6  Cnt: 3
  0x0030:   Name: GLIBC_2.9  Flags: none  Version: 12
  0x0040:   Name: GLIBC_2.34  Flags: none  Version: 11
  0x0050:   Name: GLIBC_2.2.5  Flags: none  Version: 3
";
        let linked = parse(text);
        assert_eq!(linked.to_string(), "links     libc.so.6, libgcc_s.so.1\nneeds     glibc 2.34 or newer");
        assert_eq!(
            parse("There is no dynamic section in this file.").to_string(),
            "links     nothing: the binary is static"
        );
    }
}
