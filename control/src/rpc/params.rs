//! Parameters held against the table of methods.

use std::fmt;
use std::net::SocketAddr;

use serde_json::{Map, Value};

use super::RpcError;
use super::methods::{InlineUse, MethodSpec, Need, ParamKind, ParamSpec};
use crate::nearest::nearest;

impl fmt::Display for ParamKind {
    /// What is legal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamKind::Text { bytes_max } => write!(f, "a text of at most {bytes_max} bytes"),
            ParamKind::Count { min, max } => write!(f, "a whole number, {min} to {max}"),
            ParamKind::Number { min, max } => write!(f, "a number, {min} to {max}"),
            ParamKind::Counts {
                min,
                max,
                length_max,
            } => {
                write!(f, "1 to {length_max} whole numbers, each {min} to {max}")
            }
            ParamKind::Word(words) => write!(f, "one of {}", words.join(", ")),
            ParamKind::Address => f.write_str("ADDRESS:PORT"),
            ParamKind::Inline { bytes_max } => {
                let words = InlineUse::WORDS.join(", ");
                write!(f, "one of {words}, or a whole number, 0 to {bytes_max}")
            }
        }
    }
}

impl ParamKind {
    fn admits(&self, value: &Value) -> bool {
        let count = |value: &Value, min: u64, max: u64| {
            value
                .as_u64()
                .is_some_and(|number| (min..=max).contains(&number))
        };
        match self {
            ParamKind::Text { bytes_max } => {
                value.as_str().is_some_and(|text| text.len() <= *bytes_max)
            }
            ParamKind::Count { min, max } => count(value, *min, *max),
            ParamKind::Number { min, max } => value
                .as_f64()
                .is_some_and(|number| (*min..=*max).contains(&number)),
            ParamKind::Counts {
                min,
                max,
                length_max,
            } => value.as_array().is_some_and(|list| {
                (1..=*length_max).contains(&list.len())
                    && list.iter().all(|item| count(item, *min, *max))
            }),
            ParamKind::Word(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            ParamKind::Address => value
                .as_str()
                .is_some_and(|text| text.parse::<SocketAddr>().is_ok()),
            ParamKind::Inline { bytes_max } => match value {
                Value::String(word) => InlineUse::WORDS.contains(&word.as_str()),
                number => count(number, 0, *bytes_max),
            },
        }
    }
}

/// Checks parameters given by name, by position or not at all, and gives them by name. A `null`
/// stands for a parameter left out.
pub(super) fn check_params(
    spec: &MethodSpec,
    params: Option<Value>,
) -> Result<Map<String, Value>, RpcError> {
    let mut named = match params {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map,
        Some(Value::Array(list)) => by_position(spec, list)?,
        Some(other) => {
            let what = format!("params need an object or a list, not {}", quote(&other));
            return Err(RpcError::new(RpcError::INVALID_REQUEST, what));
        }
    };
    named.retain(|_, value| !value.is_null());
    for (name, value) in &named {
        let Some(param) = spec.params.iter().find(|param| param.name == name) else {
            return Err(unknown(spec, name));
        };
        if !param.kind.admits(value) {
            let (name, legal) = (param.name, param.kind);
            let what = format!("{name}: not legal ({}); legal: {legal}", quote(value));
            return Err(RpcError::params(what));
        }
    }
    let missing =
        |param: &&ParamSpec| param.need == Need::Required && !named.contains_key(param.name);
    match spec.params.iter().find(missing) {
        Some(param) => Err(RpcError::params(format!(
            "{}: missing; legal: {}",
            param.name, param.kind
        ))),
        None => Ok(named),
    }
}

fn by_position(spec: &MethodSpec, list: Vec<Value>) -> Result<Map<String, Value>, RpcError> {
    if list.len() > spec.params.len() {
        let (given, legal) = (list.len(), spec.params.len());
        let method = spec.method;
        return Err(RpcError::params(format!(
            "{method} takes {legal} parameters, not {given}"
        )));
    }
    let names = spec.params.iter().map(|param| param.name.to_string());
    Ok(names.zip(list).collect())
}

fn unknown(spec: &MethodSpec, given: &str) -> RpcError {
    let names: Vec<&str> = spec.params.iter().map(|param| param.name).collect();
    let shown = quote(&Value::String(given.to_string()));
    let hint = match nearest(given, names.iter().copied()) {
        Some(word) => format!("; did you mean {word:?}?"),
        None if names.is_empty() => format!("; {} takes none", spec.method),
        None => format!("; legal: {}", names.join(", ")),
    };
    RpcError::params(format!("unknown parameter {shown}{hint}"))
}

/// A value as an error repeats it: JSON, cut to a readable length.
pub(super) fn quote(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Method;
    use super::*;

    fn refused(method: Method, params: Value) -> String {
        check_params(method.spec(), Some(params))
            .expect_err("illegal")
            .message
    }

    #[test]
    fn what_is_wrong_is_told_with_the_value_and_what_is_legal() {
        assert_eq!(
            refused(Method::SetPoll, json!({"mode": "bussy"})),
            "mode: not legal (\"bussy\"); legal: one of busy, adaptive, interrupt"
        );
        assert_eq!(
            refused(Method::SetPoll, json!({"mod": "busy"})),
            "unknown parameter \"mod\"; did you mean \"mode\"?"
        );
        assert_eq!(
            refused(Method::SetPoll, json!({"worker": 1})),
            "mode: missing; legal: one of busy, adaptive, interrupt"
        );
        assert_eq!(
            refused(Method::Version, json!({"x": 1})),
            "unknown parameter \"x\"; appliance.version takes none"
        );
        assert_eq!(
            refused(Method::SetPoll, json!([1, 2, 3])),
            "worker.set_poll takes 2 parameters, not 3"
        );
        assert_eq!(
            refused(Method::LatencyRun, json!({"connect": "localhost:1"})),
            "connect: not legal (\"localhost:1\"); legal: ADDRESS:PORT"
        );
        assert_eq!(
            refused(
                Method::LatencyRun,
                json!({"connect": "127.0.0.1:1", "sizes": []})
            ),
            "sizes: not legal ([]); legal: 1 to 64 whole numbers, each 1 to 65536"
        );
        let long = "x".repeat(5000);
        assert!(refused(Method::SetPoll, json!({"mode": long})).len() < 200);
    }

    #[test]
    fn a_null_is_a_parameter_left_out() {
        let params = json!({"mode": "busy", "worker": null});
        let checked = check_params(Method::SetPoll.spec(), Some(params)).expect("legal");
        assert_eq!(Value::Object(checked), json!({"mode": "busy"}));
        assert_eq!(
            check_params(Method::Version.spec(), Some(json!(null))),
            Ok(Map::new())
        );
    }

    #[test]
    fn parameters_that_are_neither_object_nor_list_are_no_request() {
        let refused = check_params(Method::Version.spec(), Some(json!("x"))).expect_err("text");
        assert_eq!(refused.code, RpcError::INVALID_REQUEST);
    }
}
