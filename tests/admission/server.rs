//! The API server, asked in plain JSON: what is refused before it is a typed object must be
//! writable too.

use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::Runtime;

/// User name of the controller in the chart's default namespace.
const CONTROLLER: &str = "system:serviceaccount:sluice-system:sluice-controller";

/// The API server, by two users.
pub(crate) struct Server {
    runtime: Runtime,
    admin: Client,
    controller: Client,
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum By {
    #[default]
    Admin,
    Controller,
}

impl Server {
    pub(crate) fn connect() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = |user: Option<&str>| {
            runtime.block_on(async {
                let mut config = Config::infer().await.unwrap();
                config.auth_info.impersonate = user.map(str::to_owned);
                Client::try_from(config).unwrap()
            })
        };
        let (admin, controller) = (client(None), client(Some(CONTROLLER)));
        Self { runtime, admin, controller }
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
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", format!("application/{kind}"))
            .body(serde_json::to_vec(body).unwrap())
            .unwrap();
        let client = match by {
            By::Admin => &self.admin,
            By::Controller => &self.controller,
        };
        match self.runtime.block_on(client.request::<Value>(request)) {
            Ok(reply) => Ok(reply),
            Err(kube::Error::Api(status)) => Err(status.message.clone()),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }
}
