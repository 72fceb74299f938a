//! Cluster side: what a cluster asks a process about itself: `/healthz`, `/readyz`, `/metrics`.
//!
//! A process is ready once every named check has turned true, and no longer when one turns false
//! again: a store whose watch has ended must not go on answering.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long open connections may hold up the end of a server.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// The named checks of a process.
#[derive(Clone, Debug)]
pub struct Readiness(watch::Sender<BTreeMap<&'static str, bool>>);

/// One check. Dropped, it is false: whoever kept it true has ended.
#[derive(Debug)]
pub struct Check {
    name: &'static str,
    all: watch::Sender<BTreeMap<&'static str, bool>>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }
}

impl Readiness {
    /// Adds a check, false at first. Register every check before the server starts, so that it
    /// cannot be ready too early.
    #[must_use]
    pub fn check(&self, name: &'static str) -> Check {
        let mut before = None;
        self.0.send_modify(|checks| before = checks.insert(name, false));
        assert_eq!(before, None, "check {name} is registered once");
        Check { name, all: self.0.clone() }
    }

    /// Whether every check is true, and there is one.
    pub fn is_ready(&self) -> bool {
        let checks = self.0.borrow();
        !checks.is_empty() && checks.values().all(|&passed| passed)
    }

    /// One line for each check, in the order of their names.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for (name, passed) in self.0.borrow().iter() {
            let mark = if *passed { "[+]" } else { "[-]" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{mark} {name}");
        }
        text
    }
}

impl Check {
    /// Says how the check stands.
    pub fn set(&self, passed: bool) {
        self.all.send_if_modified(|checks| checks.insert(self.name, passed) != Some(passed));
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The three endpoints.
pub fn router(readiness: Readiness, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

/// Serves until `token` is cancelled, then lets what is under way finish for a few seconds.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    token: CancellationToken,
) -> io::Result<()> {
    let stopped = token.clone().cancelled_owned();
    let server = axum::serve(listener, router).with_graceful_shutdown(stopped);
    tokio::select! {
        result = server => result,
        () = async { token.cancelled().await; tokio::time::sleep(DRAIN_LIMIT).await } => Ok(()),
    }
}

async fn readyz(State(readiness): State<Readiness>) -> Response {
    let ready = readiness.is_ready();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, readiness.report()).into_response()
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot write the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn ready_only_while_every_check_is_true() {
        let readiness = Readiness::default();
        let router = router(readiness.clone(), Arc::new(Registry::default()));
        assert_eq!(get(&router, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);

        let (stores, extender) = (readiness.check("stores"), readiness.check("extender"));
        stores.set(true);
        let (status, report) = get(&router, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(report, "[-] extender\n[+] stores\n");

        extender.set(true);
        assert_eq!(get(&router, "/readyz").await.0, StatusCode::OK);
        assert_eq!(get(&router, "/healthz").await, (StatusCode::OK, "ok".to_owned()));

        drop(stores);
        assert_eq!(get(&router, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn metrics_are_text() {
        let mut registry = Registry::default();
        let seen = Counter::<u64>::default();
        registry.register("seen", "Things seen", seen.clone());
        seen.inc();
        let router = router(Readiness::default(), Arc::new(registry));
        let (status, text) = get(&router, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("seen_total 1\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
