//! Cluster side: SIGTERM and SIGINT ask the process to end; a second one ends it at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code after a second signal, as a shell reports a process ended by SIGINT.
const ABORTED: i32 = 130;

/// A token that is cancelled by the first SIGTERM or SIGINT. Must be called inside the runtime.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    };
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let name = signals.next().await;
        tracing::info!(signal = name, "asked to stop");
        cancelled.cancel();
        let name = signals.next().await;
        tracing::warn!(signal = name, "asked again: ending at once");
        std::process::exit(ABORTED);
    });
    Ok(token)
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
