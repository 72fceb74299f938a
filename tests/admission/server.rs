//! The API server, asked in plain JSON: what is refused before it is a typed object must be
//! writable too.

use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::Runtime;

/// How the API server writes that a service account's token was given out on a node.
const NODE_NAME: &str = "authentication.kubernetes.io%2Fnode-name";

/// The API server.
pub(crate) struct Server {
    runtime: Runtime,
    client: Client,
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum By {
    /// An administrator.
    #[default]
    Admin,
    /// The controller of the chart.
    Controller,
    /// The agent of node `here`.
    Agent,
}

impl By {
    /// The headers by which an administrator speaks for another.
    fn headers(self) -> Vec<(String, String)> {
        let account = |name| format!("system:serviceaccount:sluice-system:sluice-{name}");
        let user = |name| ("impersonate-user".to_owned(), account(name));
        match self {
            Self::Admin => vec![],
            Self::Controller => vec![user("controller")],
            Self::Agent => {
                vec![user("agent"), (format!("impersonate-extra-{NODE_NAME}"), "here".to_owned())]
            }
        }
    }
}

impl Server {
    pub(crate) fn connect() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let config = Config::infer().await.unwrap();
            Client::try_from(config).unwrap()
        });
        Self { runtime, client }
    }

    /// The reply, or the message of the refusal.
    pub(crate) fn send(
        &self,
        by: By,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Value, String> {
        let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", format!("application/{kind}"));
        for (name, value) in by.headers() {
            request = request.header(name, value);
        }
        let request = request.body(serde_json::to_vec(body).unwrap()).unwrap();
        match self.runtime.block_on(self.client.request::<Value>(request)) {
            Ok(reply) => Ok(reply),
            Err(kube::Error::Api(status)) => Err(status.message.clone()),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }
}
