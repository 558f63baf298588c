//! The methods: one table with names, parameters and documentation, and the checked requests
//! that come out of it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::RpcError;
use super::params::check_params;
use crate::config::{LogLevel, PollMode};
use crate::words::words;

words! {
    /// Everything that can be asked, named `object.verb`.
    pub enum Method {
        /// This table.
        Discover = "rpc.discover",
        /// Who answers.
        Version = "appliance.version",
        /// Ends the appliance in order.
        Stop = "appliance.stop",
        /// The configuration in force.
        ConfigShow = "config.show",
        /// Looks for mistakes in a configuration.
        ConfigCheck = "config.check",
        /// The RDMA devices.
        DeviceList = "device.list",
        /// The links.
        LinkList = "link.list",
        /// The link groups.
        GroupList = "group.list",
        /// The connections.
        ConnList = "conn.list",
        /// The workers.
        WorkerList = "worker.list",
        /// Memory and hugepages.
        MemoryShow = "memory.show",
        /// Connections that stayed on TCP.
        FallbackList = "fallback.list",
        /// All counters.
        StatsShow = "stats.show",
        /// Sets the counters back.
        StatsClear = "stats.clear",
        /// Changes how workers wait.
        SetPoll = "worker.set_poll",
        /// Changes how much the log tells.
        SetLog = "log.set",
        /// Changes how much is sent inline.
        SetInline = "inline.set",
        /// Measures round trips.
        LatencyRun = "latency.run",
    }
}

/// When a method answers. Answers of one client may overtake each other; ids tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As soon as the appliance gets to it.
    Soon,
    /// When what it was asked to run has ended.
    WhenDone,
}

/// Whether a parameter may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It may not.
    Required,
    /// It may; what then happens stands in its description.
    Optional,
}

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParamKind {
    /// A text of at most this many bytes.
    Text {
        /// Most bytes.
        bytes_max: usize,
    },
    /// A whole number in this closed range.
    Count {
        /// Least.
        min: u64,
        /// Greatest.
        max: u64,
    },
    /// A number, with or without fraction, in this closed range.
    Number {
        /// Least.
        min: f64,
        /// Greatest.
        max: f64,
    },
    /// A list of whole numbers in this closed range.
    Counts {
        /// Least.
        min: u64,
        /// Greatest.
        max: u64,
        /// Longest list; an empty one is never legal.
        length_max: usize,
    },
    /// One of these words.
    Word(&'static [&'static str]),
    /// `ADDRESS:PORT`.
    Address,
    /// A word of [`InlineUse`] or a number of bytes up to this.
    Inline {
        /// Greatest number of bytes.
        bytes_max: u64,
    },
}

/// One parameter.
#[derive(Clone, Copy, Debug)]
pub struct ParamSpec {
    /// Its name; parameters given as a list are taken in the order of the table.
    pub name: &'static str,
    /// What it takes.
    pub kind: ParamKind,
    /// Whether it may be left out.
    pub need: Need,
    /// What it means.
    pub about: &'static str,
}

/// One method.
#[derive(Clone, Copy, Debug)]
pub struct MethodSpec {
    /// The method.
    pub method: Method,
    /// What it does.
    pub about: &'static str,
    /// Its parameters.
    pub params: &'static [ParamSpec],
    /// What comes back: a type of `pollux_control::view`, or a description.
    pub result: &'static str,
    /// When it answers.
    pub answer: Answer,
}

/// Longest message that a latency run sends, in bytes.
pub const LATENCY_BYTES_MAX: u64 = pollux_worker::PING_BYTES_MAX as u64;

/// How long one message size of a latency run may take, in seconds.
pub const LATENCY_SECONDS: RangeInclusive<f64> = 0.01..=600.0;
/// Greatest inline size that can be asked for, in bytes; the limit of `device.inline`.
const INLINE_BYTES_MAX: u64 = 1024;

/// Every method, in the order of [`Method::ALL`].
pub static METHODS: &[MethodSpec] = &[
    plain(
        Method::Discover,
        "Lists the methods with their parameters.",
        "{methods: [...]}",
    ),
    plain(Method::Version, "Tells who answers.", "VersionView"),
    plain(
        Method::Stop,
        "Ends the appliance in order: connections are closed, sockets and locks removed. Answers \
         when the end has begun; the connection closes when it is reached.",
        "true",
    ),
    plain(
        Method::ConfigShow,
        "Shows the configuration in force.",
        "ConfigView",
    ),
    MethodSpec {
        method: Method::ConfigCheck,
        about: "Looks for mistakes in the text of a configuration; changes nothing.",
        params: &[ParamSpec {
            name: "text",
            kind: ParamKind::Text {
                bytes_max: 512 << 10,
            },
            need: Need::Required,
            about: "The configuration as TOML.",
        }],
        result: "{findings: [text, ...]}, empty when it is good",
        answer: Answer::Soon,
    },
    plain(
        Method::DeviceList,
        "Lists the RDMA devices.",
        "[DeviceView, ...]",
    ),
    plain(Method::LinkList, "Lists the links.", "[LinkView, ...]"),
    plain(
        Method::GroupList,
        "Lists the link groups.",
        "[GroupView, ...]",
    ),
    plain(
        Method::ConnList,
        "Lists the connections.",
        "[ConnView, ...]",
    ),
    plain(
        Method::WorkerList,
        "Lists the workers.",
        "[WorkerView, ...]",
    ),
    plain(
        Method::MemoryShow,
        "Shows memory, hugepages and limits.",
        "MemoryView",
    ),
    plain(
        Method::FallbackList,
        "Lists connections that stayed on TCP, with the reason.",
        "[FallbackView, ...]",
    ),
    plain(Method::StatsShow, "Shows all counters.", "StatsView"),
    plain(
        Method::StatsClear,
        "Sets the counters back: later ones count from here.",
        "true",
    ),
    MethodSpec {
        method: Method::SetPoll,
        about: "Changes how workers wait for work.",
        params: &[
            ParamSpec {
                name: "mode",
                kind: ParamKind::Word(PollMode::WORDS),
                need: Need::Required,
                about: "The new mode.",
            },
            ParamSpec {
                name: "worker",
                kind: ParamKind::Count { min: 0, max: 8191 },
                need: Need::Optional,
                about: "Number of the worker; without it, all.",
            },
        ],
        result: "true",
        answer: Answer::Soon,
    },
    MethodSpec {
        method: Method::SetLog,
        about: "Changes how much the appliance tells in its log.",
        params: &[ParamSpec {
            name: "level",
            kind: ParamKind::Word(LogLevel::WORDS),
            need: Need::Required,
            about: "The new level.",
        }],
        result: "true",
        answer: Answer::Soon,
    },
    MethodSpec {
        method: Method::SetInline,
        about: "Caps how much is sent inline; what a link was granted stays the upper limit.",
        params: &[ParamSpec {
            name: "inline",
            kind: ParamKind::Inline {
                bytes_max: INLINE_BYTES_MAX,
            },
            need: Need::Required,
            about: "\"on\": whatever fits, \"messages\": CDC and LLC messages only, \"off\": nothing, \
                    or at most this number of bytes.",
        }],
        result: "true",
        answer: Answer::Soon,
    },
    MethodSpec {
        method: Method::LatencyRun,
        about: "Measures round trips of a worker with an echo service.",
        params: LATENCY,
        result: "LatencyTable",
        answer: Answer::WhenDone,
    },
];

const LATENCY: &[ParamSpec] = &[
    ParamSpec {
        name: "connect",
        kind: ParamKind::Address,
        need: Need::Required,
        about: "Address of the echo service.",
    },
    ParamSpec {
        name: "sizes",
        kind: ParamKind::Counts {
            min: 1,
            max: LATENCY_BYTES_MAX,
            length_max: 64,
        },
        need: Need::Optional,
        about: "Message sizes in bytes, one row each; without it 1, 16, 64, 256, 1024 and 4096.",
    },
    ParamSpec {
        name: "seconds",
        kind: ParamKind::Number {
            min: *LATENCY_SECONDS.start(),
            max: *LATENCY_SECONDS.end(),
        },
        need: Need::Optional,
        about: "How long each size runs; 1 when neither this nor iterations is given.",
    },
    ParamSpec {
        name: "iterations",
        kind: ParamKind::Count {
            min: 1,
            max: 100_000_000,
        },
        need: Need::Optional,
        about: "How many round trips each size runs, instead of seconds.",
    },
    ParamSpec {
        name: "inline",
        kind: ParamKind::Word(InlineUse::WORDS),
        need: Need::Optional,
        about: "What this connection sends inline; \"on\" without it.",
    },
];

const fn plain(method: Method, about: &'static str, result: &'static str) -> MethodSpec {
    MethodSpec {
        method,
        about,
        params: &[],
        result,
        answer: Answer::Soon,
    }
}

impl Method {
    /// The method's row in [`METHODS`].
    #[must_use]
    pub fn spec(self) -> &'static MethodSpec {
        // The table has one row for each method, in their order; a test holds it to that.
        &METHODS[self as usize]
    }
}

words! {
    /// What is sent inline.
    pub enum InlineUse {
        /// Whatever fits.
        On = "on",
        /// Messages where they fit, the bytes of streams never.
        Messages = "messages",
        /// Never.
        Off = "off",
    }
}

/// Parameter of `inline.set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InlineSetting {
    /// A word.
    Use(InlineUse),
    /// At most this many bytes.
    Bytes(u32),
}

impl std::fmt::Display for InlineSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InlineSetting::Use(inline) => inline.fmt(f),
            InlineSetting::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl std::str::FromStr for InlineSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<InlineSetting, String> {
        if let Ok(inline) = text.parse() {
            return Ok(InlineSetting::Use(inline));
        }
        match text.parse() {
            Ok(bytes) if u64::from(bytes) <= INLINE_BYTES_MAX => Ok(InlineSetting::Bytes(bytes)),
            _ => Err(format!(
                "legal: {}, or a number of bytes up to {INLINE_BYTES_MAX}",
                InlineUse::WORDS.join(", ")
            )),
        }
    }
}

/// Parameters of `worker.set_poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollRequest {
    /// The new mode.
    pub mode: PollMode,
    /// The worker; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
}

/// Parameters of `latency.run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyRequest {
    /// Address of the echo service.
    pub connect: SocketAddr,
    /// Message sizes in bytes, one row each; never empty.
    #[serde(default = "default_sizes")]
    pub sizes: Vec<u32>,
    /// How long each size runs, in seconds; `None` when `iterations` says when to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// How many round trips each size runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
    /// What this connection sends inline.
    #[serde(default = "default_inline")]
    pub inline: InlineUse,
}

fn default_sizes() -> Vec<u32> {
    vec![1, 16, 64, 256, 1024, 4096]
}

fn default_inline() -> InlineUse {
    InlineUse::On
}

/// A request with checked parameters. `rpc.discover` and `config.check` are answered by the
/// server itself and do not occur.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// [`Method::Version`]
    Version,
    /// [`Method::Stop`]
    Stop,
    /// [`Method::ConfigShow`]
    ConfigShow,
    /// [`Method::DeviceList`]
    DeviceList,
    /// [`Method::LinkList`]
    LinkList,
    /// [`Method::GroupList`]
    GroupList,
    /// [`Method::ConnList`]
    ConnList,
    /// [`Method::WorkerList`]
    WorkerList,
    /// [`Method::MemoryShow`]
    MemoryShow,
    /// [`Method::FallbackList`]
    FallbackList,
    /// [`Method::StatsShow`]
    StatsShow,
    /// [`Method::StatsClear`]
    StatsClear,
    /// [`Method::SetPoll`]
    SetPoll(PollRequest),
    /// [`Method::SetLog`]
    SetLog(LogLevel),
    /// [`Method::SetInline`]
    SetInline(InlineSetting),
    /// [`Method::LatencyRun`]
    LatencyRun(LatencyRequest),
}

/// What a method's parameters amount to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Asked {
    /// The server's own business.
    Discover,
    /// The server's own business.
    ConfigCheck(String),
    /// For [`super::Methods`].
    Request(Request),
}

/// Checks the parameters of `method` and makes them a request.
pub(super) fn asked(method: Method, params: Option<Value>) -> Result<Asked, RpcError> {
    let params = check_params(method.spec(), params)?;
    let request = match method {
        Method::Discover => return Ok(Asked::Discover),
        Method::ConfigCheck => {
            let text = params
                .get("text")
                .and_then(Value::as_str)
                .unwrap_or_default();
            return Ok(Asked::ConfigCheck(text.to_string()));
        }
        Method::Version => Request::Version,
        Method::Stop => Request::Stop,
        Method::ConfigShow => Request::ConfigShow,
        Method::DeviceList => Request::DeviceList,
        Method::LinkList => Request::LinkList,
        Method::GroupList => Request::GroupList,
        Method::ConnList => Request::ConnList,
        Method::WorkerList => Request::WorkerList,
        Method::MemoryShow => Request::MemoryShow,
        Method::FallbackList => Request::FallbackList,
        Method::StatsShow => Request::StatsShow,
        Method::StatsClear => Request::StatsClear,
        Method::SetPoll => Request::SetPoll(typed(Value::Object(params))?),
        Method::SetLog => Request::SetLog(typed(params.get("level").cloned().unwrap_or_default())?),
        Method::SetInline => {
            Request::SetInline(typed(params.get("inline").cloned().unwrap_or_default())?)
        }
        Method::LatencyRun => Request::LatencyRun(latency(params)?),
    };
    Ok(Asked::Request(request))
}

fn latency(params: Map<String, Value>) -> Result<LatencyRequest, RpcError> {
    let mut request: LatencyRequest = typed(Value::Object(params))?;
    if request.connect.port() == 0 {
        return Err(RpcError::params(
            "connect: nobody listens on port 0; legal: 1 to 65535",
        ));
    }
    match (request.seconds, request.iterations) {
        (Some(_), Some(_)) => Err(RpcError::params(
            "seconds and iterations are both given; legal: one of them, or none",
        )),
        (None, None) => {
            request.seconds = Some(1.0);
            Ok(request)
        }
        _ => Ok(request),
    }
}

/// The checked parameters as their type. The table has refused what could fail here.
fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, RpcError> {
    serde_json::from_value(value).map_err(|error| RpcError::params(error.to_string()))
}

/// The result of `rpc.discover`.
#[must_use]
pub fn discover() -> Value {
    let methods: Vec<Value> = METHODS
        .iter()
        .map(|spec| {
            let params: Vec<Value> = spec
                .params
                .iter()
                .map(|param| {
                    json!({
                        "name": param.name,
                        "required": param.need == Need::Required,
                        "legal": param.kind.to_string(),
                        "description": param.about,
                    })
                })
                .collect();
            json!({
                "name": spec.method,
                "description": spec.about,
                "params": params,
                "result": spec.result,
                "deferred": spec.answer == Answer::WhenDone,
            })
        })
        .collect();
    json!({
        "protocol": "JSON-RPC 2.0, one message a line",
        "version": env!("CARGO_PKG_VERSION"),
        "methods": methods,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, params: Value) -> Result<Request, String> {
        match asked(method, Some(params)) {
            Ok(Asked::Request(request)) => Ok(request),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.code, RpcError::INVALID_PARAMS);
                Err(error.message)
            }
        }
    }

    #[test]
    fn the_table_has_one_row_for_each_method_in_their_order() {
        let rows: Vec<Method> = METHODS.iter().map(|spec| spec.method).collect();
        assert_eq!(rows, Method::ALL);
        let listed = discover();
        assert_eq!(
            listed["methods"].as_array().map(Vec::len),
            Some(Method::ALL.len())
        );
        assert_eq!(listed["methods"][0]["name"], "rpc.discover");
    }

    #[test]
    fn parameters_become_a_typed_request_with_defaults_filled_in() {
        assert_eq!(
            request(Method::LatencyRun, json!({"connect": "127.0.0.1:7001"})),
            Ok(Request::LatencyRun(LatencyRequest {
                connect: "127.0.0.1:7001".parse().expect("address"),
                sizes: vec![1, 16, 64, 256, 1024, 4096],
                seconds: Some(1.0),
                iterations: None,
                inline: InlineUse::On,
            }))
        );
        assert_eq!(
            request(Method::SetPoll, json!(["busy", 1])),
            Ok(Request::SetPoll(PollRequest {
                mode: PollMode::Busy,
                worker: Some(1)
            }))
        );
        for (value, setting) in [
            (json!("on"), InlineSetting::Use(InlineUse::On)),
            (json!("off"), InlineSetting::Use(InlineUse::Off)),
            (json!("messages"), InlineSetting::Use(InlineUse::Messages)),
            (json!(64), InlineSetting::Bytes(64)),
        ] {
            let expected = Ok(Request::SetInline(setting));
            assert_eq!(
                request(Method::SetInline, json!({"inline": value})),
                expected
            );
        }
    }

    #[test]
    fn parameters_that_exclude_each_other_are_refused() {
        let both = json!({"connect": "127.0.0.1:1", "seconds": 1, "iterations": 5});
        let refused = request(Method::LatencyRun, both).expect_err("both");
        assert!(refused.contains("both given"), "{refused}");
        let zero = request(Method::LatencyRun, json!({"connect": "127.0.0.1:0"}));
        assert!(zero.expect_err("port 0").contains("port 0"));
    }
}
