//! Cluster side: `/debug/snapshot`: what the leader was told and decided last, and its state, as
//! the records that `sluice replay` and `sluice explain` read.
//!
//! A snapshot names every pod of the pools, so it is not for everybody. The server listens on a
//! loopback address only: whoever wants a snapshot goes through `kubectl port-forward`, for which
//! the API server asks for the right `create pods/portforward` in Sluice's namespace, over TLS. A
//! token checked here would need TLS of our own, and the right to review tokens, to say the same.
//! A browser on the machine of whoever forwards the port may be led here by a name that somebody
//! else owns; so the request must be for a loopback address by its own name.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::Stream;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use super::lease::Leadership;
use crate::journal::Snapshot;

/// How long the leader may take to answer: it does so between two rounds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Requests that wait at a time.
const WAITING_MAX: usize = 4;

/// Where requests for snapshots meet whoever leads.
#[derive(Clone, Debug)]
pub struct Desk {
    asks: mpsc::Sender<Ask>,
    inbox: Arc<Mutex<mpsc::Receiver<Ask>>>,
}

/// A request, to be answered with the snapshots of every pool.
pub(super) type Ask = oneshot::Sender<Vec<Snapshot>>;

impl Default for Desk {
    fn default() -> Self {
        let (asks, inbox) = mpsc::channel(WAITING_MAX);
        Self { asks, inbox: Arc::new(Mutex::new(inbox)) }
    }
}

impl Desk {
    /// The next request.
    pub(super) async fn next(&self) -> Option<Ask> {
        self.inbox.lock().await.recv().await
    }

    /// The records of every pool, from whoever leads in this process.
    async fn ask(&self) -> Option<Vec<Snapshot>> {
        let (ask, answer) = oneshot::channel();
        self.asks.try_send(ask).ok()?;
        tokio::time::timeout(ANSWER_LIMIT, answer).await.ok()?.ok()
    }
}

/// The endpoint.
pub fn router(desk: Desk, leadership: Leadership) -> Router {
    Router::new().route("/debug/snapshot", get(snapshot)).with_state((desk, leadership))
}

async fn snapshot(
    State((desk, leadership)): State<(Desk, Leadership)>,
    headers: HeaderMap,
) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_loopback) {
        let text = "ask for a loopback address by its own name, such as http://127.0.0.1:10263\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    if !leadership.holds() {
        let text = "this replica does not lead: ask the one that holds the lease\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    let Some(pools) = desk.ask().await else {
        let text = "the leader has no time to answer now: ask again\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines(pools)))
        .into_response()
}

/// The lines, as fast as they are taken: many pools' records never stand in memory twice.
fn lines(pools: Vec<Snapshot>) -> impl Stream<Item = Result<String, Infallible>> {
    let (out, lines) = mpsc::channel(1);
    // A large state takes its time to be written, which must not hold up the others here.
    tokio::task::spawn_blocking(move || {
        for line in pools.into_iter().flat_map(Snapshot::into_lines) {
            if out.blocking_send(Ok(line)).is_err() {
                tracing::debug!("whoever asked for the snapshot has gone");
                return;
            }
        }
    });
    ReceiverStream::new(lines)
}

/// Whether a `Host` header names a loopback address, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn only_a_loopback_address_by_its_own_name_is_answered() {
        let own =
            ["127.0.0.1:10263", "127.0.0.1", "localhost", "localhost:8080", "[::1]:1", "[::1]"];
        for host in own {
            assert!(is_loopback(host), "{host}");
        }
        let others =
            ["", "evil.example", "evil.example:10263", "10.0.0.1", "localhost.evil.example", "::2"];
        for host in others {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
