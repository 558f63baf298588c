//! From lines to calls and back to lines: JSON-RPC 2.0 without any socket.
//!
//! A line holds a request, a notification or a batch of both. An answer that comes later is
//! remembered by ticket; a batch is answered when its last answer is there. Nothing is kept for a
//! client that is gone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::RpcError;
use super::methods::{Asked, Method, Request, asked, discover};
use super::params::quote;
use crate::config::Config;
use crate::nearest::nearest;

/// Names an answer that comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Names a client for as long as it is connected; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClientId(pub(super) u64);

/// One checked call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is asked.
    pub request: Request,
    /// To be given back as [`Reply::Later`] when the answer takes time.
    pub ticket: Ticket,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It is here.
    Now(Result<Value, RpcError>),
    /// It will be handed to [`RpcServer::complete`](super::RpcServer::complete) with this ticket,
    /// which is the call's own.
    Later(Ticket),
}

impl Reply {
    /// An answer that is here and good.
    pub fn of(view: &impl serde::Serialize) -> Reply {
        Reply::Now(serde_json::to_value(view).map_err(|error| {
            RpcError::internal(format!("cannot write the answer as JSON: {error}"))
        }))
    }
}

/// Carries out what clients ask for.
pub trait Methods {
    /// Answers one call, now or later. Must not block.
    fn call(&mut self, call: Call) -> Reply;

    /// The client that waits for `ticket` is gone; nobody will read the answer. What the call
    /// started may be given up. [`RpcServer::complete`](super::RpcServer::complete) for the ticket
    /// is still allowed and does nothing.
    fn abandoned(&mut self, ticket: Ticket) {
        let _ = ticket;
    }
}

/// Most requests in one batch.
const BATCH_MAX: usize = 64;

/// Calls that wait for their answers.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    waiting: BTreeMap<Ticket, Waiting>,
    batches: BTreeMap<u64, Batch>,
    count: u64,
}

#[derive(Debug)]
struct Waiting {
    client: ClientId,
    place: Place,
}

/// Where an answer goes.
#[derive(Debug)]
enum Place {
    /// Nowhere: the call was a notification.
    Nowhere,
    /// To the client, as the answer to the request with this id.
    Alone(Value),
    /// Into a batch.
    Batch { id: Value, batch: u64 },
}

#[derive(Debug)]
struct Batch {
    client: ClientId,
    answers: Vec<Value>,
    missing: usize,
}

/// What became of one request.
enum Outcome {
    /// A notification; nothing is answered.
    Silent,
    /// The reply.
    Answered(Value),
    /// The answer with this ticket is missing.
    Missing(Ticket, Value),
}

impl Dispatch {
    /// Carries out one line. Gives the reply that is due now, if any, without line break.
    pub(super) fn line(
        &mut self,
        client: ClientId,
        line: &[u8],
        methods: &mut dyn Methods,
    ) -> Option<Vec<u8>> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let reply = match serde_json::from_slice::<Value>(line) {
            Err(error) => {
                let what = format!("the line is no JSON: {error}");
                Some(failure(Value::Null, RpcError::new(RpcError::PARSE, what)))
            }
            Ok(Value::Array(requests)) => self.batch(client, requests, methods),
            Ok(request) => match self.one(client, request, methods) {
                Outcome::Silent => None,
                Outcome::Answered(reply) => Some(reply),
                Outcome::Missing(ticket, id) => {
                    self.waiting.insert(
                        ticket,
                        Waiting {
                            client,
                            place: Place::Alone(id),
                        },
                    );
                    None
                }
            },
        };
        reply.map(|reply| reply.to_string().into_bytes())
    }

    /// The reply to a line that was too long to be kept.
    pub(super) fn too_long(limit: usize) -> Vec<u8> {
        let what = format!("the request is too long; legal: at most {limit} bytes a line");
        failure(Value::Null, RpcError::new(RpcError::INVALID_REQUEST, what))
            .to_string()
            .into_bytes()
    }

    /// The reply to a client for which there is no room.
    pub(super) fn no_room(limit: usize) -> Vec<u8> {
        let what = format!("{limit} clients are connected, which is the limit; try again later");
        failure(Value::Null, RpcError::busy(what))
            .to_string()
            .into_bytes()
    }

    /// The last word to a client that has nothing under way, when there is no room for another one.
    pub(super) fn makes_room(limit: usize) -> Vec<u8> {
        let what = format!(
            "{limit} clients are connected, which is the limit, and this one was silent for longest; \
             connect again"
        );
        failure(Value::Null, RpcError::busy(what))
            .to_string()
            .into_bytes()
    }

    /// Takes an answer that comes late. Gives the client that waits for one answer less now, and the
    /// reply that is due to it, if any.
    pub(super) fn complete(
        &mut self,
        ticket: Ticket,
        result: Result<Value, RpcError>,
    ) -> Option<(ClientId, Option<Vec<u8>>)> {
        let Waiting { client, place } = self.waiting.remove(&ticket)?;
        let reply = match place {
            Place::Nowhere => None,
            Place::Alone(id) => Some(answer(id, result)),
            Place::Batch { id, batch } => self.complete_in_batch(batch, answer(id, result)),
        };
        Some((client, reply.map(|reply| reply.to_string().into_bytes())))
    }

    /// Adds an answer to its batch; gives all of them when it is the last.
    fn complete_in_batch(&mut self, number: u64, answer: Value) -> Option<Value> {
        let batch = self.batches.get_mut(&number)?;
        batch.answers.push(answer);
        batch.missing -= 1;
        if batch.missing > 0 {
            return None;
        }
        Some(Value::Array(self.batches.remove(&number)?.answers))
    }

    /// How many answers a client waits for.
    pub(super) fn waiting(&self, client: ClientId) -> usize {
        self.waiting
            .values()
            .filter(|waiting| waiting.client == client)
            .count()
    }

    /// Forgets a client. Gives the tickets for which nobody waits any more.
    pub(super) fn forget(&mut self, client: ClientId) -> Vec<Ticket> {
        self.batches.retain(|_, batch| batch.client != client);
        let gone: Vec<Ticket> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.client == client)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in &gone {
            self.waiting.remove(ticket);
        }
        gone
    }

    fn batch(
        &mut self,
        client: ClientId,
        requests: Vec<Value>,
        methods: &mut dyn Methods,
    ) -> Option<Value> {
        if requests.is_empty() || requests.len() > BATCH_MAX {
            let what = format!(
                "a batch of {}; legal: 1 to {BATCH_MAX} requests",
                requests.len()
            );
            return Some(failure(
                Value::Null,
                RpcError::new(RpcError::INVALID_REQUEST, what),
            ));
        }
        self.count += 1;
        let number = self.count;
        let mut batch = Batch {
            client,
            answers: Vec::new(),
            missing: 0,
        };
        for request in requests {
            match self.one(client, request, methods) {
                Outcome::Silent => {}
                Outcome::Answered(reply) => batch.answers.push(reply),
                Outcome::Missing(ticket, id) => {
                    batch.missing += 1;
                    let place = Place::Batch { id, batch: number };
                    self.waiting.insert(ticket, Waiting { client, place });
                }
            }
        }
        if batch.missing > 0 {
            self.batches.insert(number, batch);
            return None;
        }
        (!batch.answers.is_empty()).then_some(Value::Array(batch.answers))
    }

    fn one(&mut self, client: ClientId, request: Value, methods: &mut dyn Methods) -> Outcome {
        let mut parts = match parts(request) {
            Ok(parts) => parts,
            Err(reply) => return Outcome::Answered(reply),
        };
        let id = parts.id.take();
        let reply = match method(&parts.method).and_then(|method| asked(method, parts.params)) {
            Err(error) => Reply::Now(Err(error)),
            Ok(Asked::Discover) => Reply::Now(Ok(discover())),
            Ok(Asked::ConfigCheck(text)) => Reply::Now(Ok(check_config(&text))),
            Ok(Asked::Request(request)) => {
                self.count += 1;
                methods.call(Call {
                    request,
                    ticket: Ticket(self.count),
                })
            }
        };
        match (reply, id) {
            (Reply::Now(_), None) => Outcome::Silent,
            (Reply::Now(result), Some(id)) => Outcome::Answered(answer(id, result)),
            (Reply::Later(ticket), Some(id)) => Outcome::Missing(ticket, id),
            (Reply::Later(ticket), None) => {
                self.waiting.insert(
                    ticket,
                    Waiting {
                        client,
                        place: Place::Nowhere,
                    },
                );
                Outcome::Silent
            }
        }
    }
}

/// The members of a request.
struct Parts {
    /// `None` for a notification.
    id: Option<Value>,
    method: String,
    params: Option<Value>,
}

/// Takes a request apart, or gives the reply to what is none.
fn parts(request: Value) -> Result<Parts, Value> {
    let invalid =
        |id: Value, what: String| failure(id, RpcError::new(RpcError::INVALID_REQUEST, what));
    let Value::Object(mut members) = request else {
        let what = format!("a request is an object, not {}", quote(&request));
        return Err(invalid(Value::Null, what));
    };
    let id = members.remove("id");
    let echo = match &id {
        None | Some(Value::Null | Value::String(_) | Value::Number(_)) => {
            id.clone().unwrap_or(Value::Null)
        }
        Some(other) => {
            let what = format!("an id is a text or a number, not {}", quote(other));
            return Err(invalid(Value::Null, what));
        }
    };
    match members.get("jsonrpc") {
        Some(Value::String(version)) if version == "2.0" => {}
        Some(other) => {
            let what = format!("\"jsonrpc\" is \"2.0\", not {}", quote(other));
            return Err(invalid(echo, what));
        }
        None => {
            return Err(invalid(
                echo,
                "the member \"jsonrpc\": \"2.0\" is missing".into(),
            ));
        }
    }
    match members.remove("method") {
        Some(Value::String(method)) => Ok(Parts {
            id,
            method,
            params: members.remove("params"),
        }),
        Some(other) => Err(invalid(
            echo,
            format!("a method is a text, not {}", quote(&other)),
        )),
        None => Err(invalid(echo, "the member \"method\" is missing".into())),
    }
}

fn method(name: &str) -> Result<Method, RpcError> {
    name.parse().map_err(|_| {
        let shown = quote(&Value::String(name.to_string()));
        let hint = match nearest(name, Method::WORDS.iter().copied()) {
            Some(word) => format!("did you mean {word:?}?"),
            None => "rpc.discover lists all".to_string(),
        };
        RpcError::new(
            RpcError::METHOD_NOT_FOUND,
            format!("unknown method {shown}; {hint}"),
        )
    })
}

fn check_config(text: &str) -> Value {
    let findings: Vec<String> = match Config::from_toml_str(text, "configuration") {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    };
    json!({ "findings": findings })
}

fn answer(id: Value, result: Result<Value, RpcError>) -> Value {
    match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => failure(id, error),
    }
}

fn failure(id: Value, error: RpcError) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(1);

    /// Answers at once but for latency runs.
    #[derive(Default)]
    struct Fake {
        calls: Vec<Call>,
    }

    impl Methods for Fake {
        fn call(&mut self, call: Call) -> Reply {
            self.calls.push(call.clone());
            match call.request {
                Request::LatencyRun(_) => Reply::Later(call.ticket),
                Request::StatsClear => Reply::Now(Err(RpcError::failed("cannot"))),
                _ => Reply::Now(Ok(json!("done"))),
            }
        }
    }

    fn run(line: &str) -> Value {
        let reply = Dispatch::default().line(CLIENT, line.as_bytes(), &mut Fake::default());
        reply.map_or(Value::Null, |bytes| {
            serde_json::from_slice(&bytes).expect("JSON")
        })
    }

    fn code(line: &str) -> (i64, Value) {
        let reply = run(line);
        (
            reply["error"]["code"].as_i64().unwrap_or(0),
            reply["id"].clone(),
        )
    }

    fn ask(method: &str, id: u64) -> String {
        match method {
            "latency.run" => format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"latency.run","params":["127.0.0.1:1"]}}"#
            ),
            other => format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{other}"}}"#),
        }
    }

    #[test]
    fn a_request_is_answered_with_its_id() {
        for id in [json!(1), json!("x"), json!(null), json!(1.5)] {
            let line = json!({"jsonrpc": "2.0", "id": id, "method": "link.list"}).to_string();
            assert_eq!(
                run(&line),
                json!({"jsonrpc": "2.0", "id": id, "result": "done"})
            );
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_code_of_the_standard() {
        assert_eq!(code("{"), (RpcError::PARSE, Value::Null));
        assert_eq!(code("1"), (RpcError::INVALID_REQUEST, Value::Null));
        assert_eq!(code("[]"), (RpcError::INVALID_REQUEST, Value::Null));
        assert_eq!(
            code(r#"{"id":3,"method":"link.list"}"#),
            (RpcError::INVALID_REQUEST, json!(3))
        );
        let line = r#"{"jsonrpc":"1.0","id":3,"method":"link.list"}"#;
        assert_eq!(code(line), (RpcError::INVALID_REQUEST, json!(3)));
        let line = r#"{"jsonrpc":"2.0","id":{},"method":"link.list"}"#;
        assert_eq!(code(line), (RpcError::INVALID_REQUEST, Value::Null));
        let line = r#"{"jsonrpc":"2.0","id":3,"method":4}"#;
        assert_eq!(code(line), (RpcError::INVALID_REQUEST, json!(3)));
        let line = r#"{"jsonrpc":"2.0","id":3,"method":"link.lists"}"#;
        assert_eq!(code(line), (RpcError::METHOD_NOT_FOUND, json!(3)));
        assert!(
            run(line)["error"]["message"]
                .as_str()
                .is_some_and(|m| m.contains("link.list"))
        );
        let line = r#"{"jsonrpc":"2.0","id":3,"method":"link.list","params":{"x":1}}"#;
        assert_eq!(code(line), (RpcError::INVALID_PARAMS, json!(3)));
    }

    #[test]
    fn bytes_that_are_no_text_are_no_json() {
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}";
        let reply = Dispatch::default().line(CLIENT, line, &mut Fake::default());
        let reply: Value = serde_json::from_slice(&reply.expect("a reply")).expect("JSON");
        assert_eq!(reply["error"]["code"], RpcError::PARSE);
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(code(&deep).0, RpcError::PARSE);
    }

    #[test]
    fn notifications_are_carried_out_and_not_answered_even_when_wrong() {
        let mut methods = Fake::default();
        let mut dispatch = Dispatch::default();
        for line in [
            r#"{"jsonrpc":"2.0","method":"link.list"}"#,
            r#"{"jsonrpc":"2.0","method":"stats.clear"}"#,
            r#"{"jsonrpc":"2.0","method":"no.such"}"#,
            "  ",
        ] {
            assert_eq!(
                dispatch.line(CLIENT, line.as_bytes(), &mut methods),
                None,
                "{line}"
            );
        }
        assert_eq!(methods.calls.len(), 2);
    }

    #[test]
    fn a_batch_is_answered_as_one_list_without_its_notifications() {
        let batch = format!(
            r#"[{}, 1, {{"jsonrpc":"2.0","method":"link.list"}}, {}]"#,
            ask("link.list", 1),
            ask("stats.clear", 2)
        );
        let reply = run(&batch);
        let ids: Vec<&Value> = reply
            .as_array()
            .into_iter()
            .flatten()
            .map(|answer| &answer["id"])
            .collect();
        assert_eq!(ids, [&json!(1), &json!(null), &json!(2)]);
        assert_eq!(
            run(r#"[{"jsonrpc":"2.0","method":"link.list"}]"#),
            Value::Null
        );
        let long = format!("[{}]", vec!["1"; BATCH_MAX + 1].join(","));
        assert_eq!(code(&long).0, RpcError::INVALID_REQUEST);
    }

    #[test]
    fn an_answer_that_comes_later_goes_to_the_request_that_asked() {
        let mut methods = Fake::default();
        let mut dispatch = Dispatch::default();
        let line = ask("latency.run", 9);
        assert_eq!(dispatch.line(CLIENT, line.as_bytes(), &mut methods), None);
        assert_eq!(dispatch.waiting(CLIENT), 1);
        let ticket = methods.calls[0].ticket;
        let (client, reply) = dispatch
            .complete(ticket, Ok(json!("table")))
            .expect("a client");
        let reply: Value = serde_json::from_slice(&reply.expect("a reply")).expect("JSON");
        assert_eq!(client, CLIENT);
        assert_eq!(reply, json!({"jsonrpc": "2.0", "id": 9, "result": "table"}));
        assert_eq!(dispatch.complete(ticket, Ok(Value::Null)), None);
    }

    #[test]
    fn a_batch_waits_for_its_last_answer() {
        let mut methods = Fake::default();
        let mut dispatch = Dispatch::default();
        let line = format!(
            "[{},{},{}]",
            ask("latency.run", 1),
            ask("link.list", 2),
            ask("latency.run", 3)
        );
        assert_eq!(dispatch.line(CLIENT, line.as_bytes(), &mut methods), None);
        let tickets = [methods.calls[0].ticket, methods.calls[2].ticket];
        let nothing_yet = Some((CLIENT, None));
        assert_eq!(dispatch.complete(tickets[1], Ok(json!("b"))), nothing_yet);
        let (_, reply) = dispatch
            .complete(tickets[0], Ok(json!("a")))
            .expect("the client");
        let reply: Value = serde_json::from_slice(&reply.expect("the reply")).expect("JSON");
        assert_eq!(reply.as_array().map(Vec::len), Some(3));
        assert_eq!(reply[2], json!({"jsonrpc": "2.0", "id": 1, "result": "a"}));
    }

    #[test]
    fn nothing_is_kept_for_a_client_that_is_gone() {
        let mut methods = Fake::default();
        let mut dispatch = Dispatch::default();
        let line = format!("[{},{}]", ask("latency.run", 1), ask("latency.run", 2));
        dispatch.line(CLIENT, line.as_bytes(), &mut methods);
        let tickets: Vec<Ticket> = methods.calls.iter().map(|call| call.ticket).collect();
        assert_eq!(dispatch.forget(CLIENT), tickets);
        assert_eq!(dispatch.complete(tickets[0], Ok(Value::Null)), None);
        assert!(dispatch.batches.is_empty() && dispatch.waiting.is_empty());
    }

    #[test]
    fn the_servers_own_methods_do_not_reach_the_appliance() {
        let reply = run(&ask("rpc.discover", 1));
        assert!(reply["result"]["methods"].is_array());
        let line = json!({
            "jsonrpc": "2.0", "id": 1, "method": "config.check",
            "params": {"text": "[attach]\nslotz = 1"},
        });
        let findings = run(&line.to_string())["result"]["findings"].clone();
        assert!(
            findings[0]
                .as_str()
                .is_some_and(|text| text.contains("attach.slotz"))
        );
    }
}
