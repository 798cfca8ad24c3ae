//! The `seqline` command. Everything is in the library beside it.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    seqline_server::main(seqline_server::cli::Cli::parse())
}
