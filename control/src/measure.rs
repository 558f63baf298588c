//! Asking an appliance for a latency run.

use std::time::Duration;

use serde_json::json;

use crate::bounce::{Bounce, BounceSpec};
use crate::config::PollMode;
use crate::exit::Fatal;
use crate::rpc::{CALL_TIMEOUT, Client, LatencyRequest, Method};
use crate::rpc::{InlineSetting, PollRequest};
use crate::view::{LatencyTable, WorkerView};

/// How long a measurement may take beyond the time that it was asked to run: the handshake and
/// the slowest first round trips.
const SLACK: Duration = Duration::from_secs(15);

/// How long a measurement may take that was given a number of round trips.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// How long the answer to `request` may take.
#[must_use]
pub fn limit(request: &LatencyRequest) -> Duration {
    match request.iterations {
        Some(_) => LONGEST,
        None => {
            let each = Duration::from_secs_f64(request.seconds.unwrap_or(1.0));
            each.saturating_mul(u32::try_from(request.sizes.len()).unwrap_or(u32::MAX))
                .saturating_add(SLACK)
        }
    }
}

/// Runs a measurement.
///
/// # Errors
/// The appliance refused or failed, or its answer is of another version.
pub fn run(client: &mut Client, request: &LatencyRequest) -> Result<LatencyTable, Fatal> {
    let params = serde_json::to_value(request)
        .map_err(|error| Fatal::os(format!("cannot write the request as JSON: {error}")))?;
    let table = client.call(Method::LatencyRun, params, limit(request))?;
    typed(Method::LatencyRun, table)
}

/// Changes how all workers of an appliance wait.
///
/// # Errors
/// The appliance refused or does not answer.
pub fn set_poll(client: &mut Client, mode: PollMode) -> Result<(), Fatal> {
    let request = PollRequest { mode, worker: None };
    client.call(Method::SetPoll, json!(request), CALL_TIMEOUT)?;
    Ok(())
}

/// Caps what an appliance sends inline.
///
/// # Errors
/// The appliance refused or does not answer.
pub fn set_inline(client: &mut Client, inline: InlineSetting) -> Result<(), Fatal> {
    let params = json!({ "inline": inline });
    client.call(Method::SetInline, params, CALL_TIMEOUT)?;
    Ok(())
}

/// The cores of an appliance's workers.
///
/// # Errors
/// The appliance does not answer.
pub fn worker_cores(client: &mut Client) -> Result<Vec<u32>, Fatal> {
    let workers = client.call(Method::WorkerList, json!({}), CALL_TIMEOUT)?;
    let workers: Vec<WorkerView> = typed(Method::WorkerList, workers)?;
    Ok(workers.iter().map(|worker| worker.core).collect())
}

/// The bounce between the cores of two workers, or why it cannot be measured.
///
/// # Errors
/// The reason in words.
pub fn bounce(cores: [u32; 2]) -> Result<Bounce, String> {
    let spec = BounceSpec {
        cores: Some(cores.map(|core| core as usize)),
        ..BounceSpec::default()
    };
    crate::bounce::measure(&spec).map_err(|error| error.to_string())
}

/// An answer as what it should be.
///
/// # Errors
/// It is of another version.
pub fn typed<T: serde::de::DeserializeOwned>(
    method: Method,
    result: serde_json::Value,
) -> Result<T, Fatal> {
    serde_json::from_value(result).map_err(|error| {
        Fatal::unavailable(format!(
            "the appliance's answer to {method} is of another version ({error}); use the pollux \
             of its version, or --json"
        ))
    })
}
