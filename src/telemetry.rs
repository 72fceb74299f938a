//! Pure side: how the process speaks about itself, through `tracing`, on standard error.
//!
//! Identifiers are fields of a log line, never part of its text, so that JSON logs can be searched
//! by pod and node. A line at ERROR means that a person has to act.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::TryInitError;

/// How log lines are written.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for log collectors.
    Json,
}

/// Settings of the log.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub struct Args {
    /// How log lines are written.
    #[arg(long, env = "SLUICE_LOG_FORMAT", global = true, value_enum, default_value_t)]
    pub log_format: Format,
    /// What is logged: a level, or a list such as `info,sluice::extender=debug`. By default
    /// `info` for what runs as a server and `warn` for the other commands.
    #[arg(long, env = "SLUICE_LOG", global = true, value_parser = filter)]
    pub log: Option<String>,
}

/// Why the log could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not one.
    #[error("cannot read the log filter {text:?}")]
    Filter {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Something else took the place of the process-wide log.
    #[error("cannot start the log")]
    Start(#[from] TryInitError),
}

/// Starts the log of this process. `default` is the filter where none is given.
pub fn start(args: &Args, default: &str) -> Result<(), Error> {
    use tracing_subscriber::util::SubscriberInitExt as _;

    let text = args.log.as_deref().unwrap_or(default);
    let filter = EnvFilter::try_new(text)
        .map_err(|source| Error::Filter { text: text.to_owned(), source })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        Format::Text => builder.with_ansi(std::io::stderr().is_terminal()).finish().try_init()?,
        Format::Json => builder.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
}

/// Says what is running: the first line of a log that is sent to somebody else.
pub fn log_build() {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = option_env!("SLUICE_COMMIT").unwrap_or("unknown"),
        debug_assertions = cfg!(debug_assertions),
        "sluice starts"
    );
}

/// Refuses a broken filter as bad usage, before anything has started.
fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}
