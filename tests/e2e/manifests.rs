//! Admission by the API server: the tables of `tests/admission`, case by case, through kubectl.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::pods::{WORKLOAD, merge};
use crate::support::{LIMIT, SYSTEM, Scenario, command, now_ms};

/// One case of a table. Which fields it has depends on the table.
#[derive(Deserialize)]
struct Row {
    case: String,
    pod: Value,
    #[serde(default)]
    expect: Value,
    #[serde(default)]
    absent: Vec<String>,
    message: Option<String>,
    #[serde(default)]
    patch: Value,
    by: Option<String>,
}

fn table(name: &str) -> Result<Vec<Row>> {
    let path = command::repository().join("tests/admission").join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rows: Vec<Row> = serde_saphyr::from_str(&text).context("reading the table")?;
    ensure!(!rows.is_empty(), "{name} has no cases");
    Ok(rows)
}

/// The pod of a case, written out.
fn pod(s: &Scenario, row: &Row) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "case", "namespace": s.namespace},
    });
    merge(&mut pod, row.pod.clone());
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"][list].as_array_mut();
        for (number, container) in containers.into_iter().flatten().enumerate() {
            let gpus = container.as_object_mut().and_then(|fields| fields.remove("gpus"));
            let mut full = json!({"name": format!("{list}-{number}").to_lowercase()});
            merge(&mut full, json!({"image": WORKLOAD, "imagePullPolicy": "Never"}));
            if let Some(gpus) = gpus {
                merge(&mut full, json!({"resources": {"limits": {"nvidia.com/gpu": gpus}}}));
            }
            merge(&mut full, container.clone());
            *container = full;
        }
    }
    pod
}

/// The pools of the table stand in for the release's own while `body` runs.
async fn with_pools<F>(s: &Scenario, body: F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let own = command::run("kubectl", &["get", "gpool", "default", "-o", "json"]).await?;
    let own: Value = serde_json::from_str(&own)?;
    let file = command::repository().join("tests/admission/pools.yaml");
    let file = file.to_str().context("the path is text")?;
    let words = ["apply", "--server-side", "--force-conflicts", "-f", file];
    let outcome = async {
        command::run("kubectl", &words).await?;
        in_force(s).await?;
        body.await
    }
    .await;
    let patch = json!({"spec": {"limits": own["spec"]["limits"]}}).to_string();
    let words = ["patch", "gpool", "default", "--type=merge", "--patch", &patch];
    command::run("kubectl", &words).await?;
    command::run("kubectl", &["delete", "gpool", "four"]).await?;
    outcome
}

/// The API server takes a moment to see a new parameter of a policy, and tells nobody when it
/// does: it is asked until it answers by the new one.
async fn in_force(s: &Scenario) -> Result<()> {
    let row = json!({"case": "probe", "pod": {"spec": {"containers": [{"gpus": 1}]}}});
    let row: Row = serde_json::from_value(row)?;
    let end = now_ms() + u64::try_from(LIMIT.as_millis())?;
    loop {
        let answer = create(&pod(s, &row), true).await?;
        let seen: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        if seen["spec"]["activeDeadlineSeconds"] == 600 {
            return Ok(());
        }
        ensure!(now_ms() < end, "the policies do not follow the pool: {}", answer.stderr);
    }
}

async fn create(pod: &Value, dry_run: bool) -> Result<command::Output> {
    let dry_run = if dry_run { "--dry-run=server" } else { "--dry-run=none" };
    command::kubectl_with(&["create", dry_run, "-o", "json", "-f", "-"], &pod.to_string()).await
}

/// What does not fit, in one sentence.
fn missing(seen: &Value, wanted: &Value, at: &str) -> Option<String> {
    match (seen, wanted) {
        (Value::Object(seen), Value::Object(wanted)) => wanted.iter().find_map(|(key, wanted)| {
            missing(seen.get(key).unwrap_or(&Value::Null), wanted, &format!("{at}.{key}"))
        }),
        (seen, wanted) => {
            (seen != wanted).then(|| format!("{at} is {seen}, and should be {wanted}"))
        }
    }
}

/// All that went wrong at once, so that one run shows every broken case.
fn verdict(cases: usize, wrong: &[String]) -> Result<()> {
    ensure!(wrong.is_empty(), "{} of {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Each bad manifest is refused, with the words of the table.
pub(crate) async fn bad_ones_are_refused(s: &Scenario) -> Result<()> {
    let rows = table("refuse.yaml")?;
    with_pools(s, async {
        let mut wrong = Vec::new();
        for row in &rows {
            let output = create(&pod(s, row), true).await?;
            let message = row.message.as_deref().context("a refusal has a message")?;
            if output.success {
                wrong.push(format!("{}: was not refused", row.case));
            } else if !output.stderr.contains(message) {
                wrong.push(format!("{}: refused otherwise: {}", row.case, output.stderr));
            }
        }
        verdict(rows.len(), &wrong)
    })
    .await
}

/// What a user leaves out is filled in, and what is none of Sluice's business stays as it is.
pub(crate) async fn good_ones_are_completed(s: &Scenario) -> Result<()> {
    let rows = table("complete.yaml")?;
    with_pools(s, async {
        let mut wrong = Vec::new();
        for row in &rows {
            let output = create(&pod(s, row), true).await?;
            if !output.success {
                wrong.push(format!("{}: refused: {}", row.case, output.stderr));
                continue;
            }
            let seen: Value = serde_json::from_str(&output.stdout)?;
            wrong.extend(
                missing(&seen, &row.expect, "").map(|text| format!("{}: {text}", row.case)),
            );
            for path in &row.absent {
                let pointer = format!("/{}", path.replace('.', "/"));
                if let Some(value) = seen.pointer(&pointer) {
                    wrong.push(format!("{}: {path} is {value}", row.case));
                }
            }
        }
        verdict(rows.len(), &wrong)
    })
    .await
}

/// What may be changed later, and what may not.
pub(crate) async fn changes_are_judged(s: &Scenario) -> Result<()> {
    let rows = table("update.yaml")?;
    with_pools(s, async {
        let mut wrong = Vec::new();
        for row in &rows {
            if let Some(text) = change(s, row).await? {
                wrong.push(format!("{}: {text}", row.case));
            }
        }
        verdict(rows.len(), &wrong)
    })
    .await
}

async fn change(s: &Scenario, row: &Row) -> Result<Option<String>> {
    let mut pod = pod(s, row);
    // It only has to exist: on no node of the cluster it can run.
    merge(&mut pod, json!({"spec": {"nodeSelector": {"sluice-e2e": "nowhere"}}}));
    let made = create(&pod, false).await?;
    if !made.success {
        return Ok(Some(format!("was not created: {}", made.stderr)));
    }
    let patch = row.patch.to_string();
    let controller = format!("--as=system:serviceaccount:{SYSTEM}:sluice-controller");
    let mut words = vec!["patch", "pod", "case", "-n", &s.namespace, "--dry-run=server"];
    words.extend(["--type=merge", "--patch", &patch]);
    match row.by.as_deref() {
        None => {}
        Some("controller") => words.push(&controller),
        Some(other) => anyhow::bail!("who is {other}?"),
    }
    let output = command::output("kubectl", &words).await?;
    command::run("kubectl", &["delete", "pod", "case", "-n", &s.namespace]).await?;
    Ok(match &row.message {
        None if output.success => None,
        None => Some(format!("was refused: {}", output.stderr)),
        Some(_) if output.success => Some("was not refused".to_owned()),
        Some(message) if output.stderr.contains(message) => None,
        Some(_) => Some(format!("refused otherwise: {}", output.stderr)),
    })
}
