//! Writes the manual pages of the command, and completions for shells, into a folder: `cargo xtask dist` packs them. They are made from the
//! definition of the command line, and here, so that the command itself carries nothing of it.
//!
//! `cargo run --package seqline-server --example manual -- FOLDER`

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use seqline_server::cli::Cli;

/// What the page of the command says beside what clap knows. Those of its subcommands refer to it.
const MORE: &str = r#".SH "EXIT STATUS"
.TP
0
Done.
.TP
1
Something unexpected: please report it.
.TP
2
The command line or the settings are wrong.
.TP
3
The database, a file or an address is not available now: trying again may help; a server is not ready.
.TP
4
Refused: an event breaks a rule, a right is missing, versions do not fit.
.TP
5
Partly done.
.TP
130
Interrupted.
.SH ENVIRONMENT
.TP
SEQLINE_DATABASE_URL, DATABASE_URL
URL of the database, the first that is set. \fB\-\-database\-url\fR comes before them, and is seen by every user of the machine.
.TP
SEQLINE_CONFIG
File with settings.
.TP
SEQLINE_SECTION__KEY
One setting, stronger than the file: \fBseqline config reference\fR shows all there are.
.TP
SEQLINE_LOG
What is logged on standard error: info, debug, or a filter such as seqline=debug.
"#;

fn main() -> io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: manual FOLDER"));
    };
    pages(&folder.join("man"))?;
    completions(&folder.join("completions"))
}

/// One page for the command, and one for each of its subcommands.
fn pages(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)?;
    let page = folder.join("seqline.1");
    let text = fs::read_to_string(&page)?;
    fs::write(page, text + MORE)
}

/// Under the names by which shells find them.
fn completions(folder: &Path) -> io::Result<()> {
    for (shell, name) in [(Shell::Bash, "seqline"), (Shell::Zsh, "_seqline"), (Shell::Fish, "seqline.fish")] {
        let folder = folder.join(shell.to_string());
        fs::create_dir_all(&folder)?;
        let mut file = fs::File::create(folder.join(name))?;
        clap_complete::generate(shell, &mut Cli::command(), "seqline", &mut file);
    }
    Ok(())
}
