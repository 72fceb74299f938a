//! The `sluice` binary: parse, run, exit code.

use std::io::Write as _;
use std::process::ExitCode;

use sluice::cli::Cli;

fn main() -> ExitCode {
    match Cli::from_env().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error leaves nobody to tell; the exit code still says it.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
