//! Errors as JSON-RPC 2.0 carries them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The error member of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    /// One of the constants below, or one of a newer appliance.
    pub code: i64,
    /// What is wrong and what to do, one line.
    pub message: String,
    /// More, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// The line is no JSON.
    pub const PARSE: i64 = -32700;
    /// The JSON is no request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// No such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters do not fit the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// A mistake of the appliance.
    pub const INTERNAL: i64 = -32603;
    /// Too much at a time; a later try may succeed.
    pub const BUSY: i64 = -32000;
    /// The named thing does not exist.
    pub const NOT_FOUND: i64 = -32001;
    /// The operation was tried and failed.
    pub const FAILED: i64 = -32002;

    /// An error with a code of the list above.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> RpcError {
        RpcError {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// [`RpcError::INVALID_PARAMS`]
    #[must_use]
    pub fn params(message: impl Into<String>) -> RpcError {
        RpcError::new(RpcError::INVALID_PARAMS, message)
    }

    /// [`RpcError::BUSY`]
    #[must_use]
    pub fn busy(message: impl Into<String>) -> RpcError {
        RpcError::new(RpcError::BUSY, message)
    }

    /// [`RpcError::NOT_FOUND`]
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> RpcError {
        RpcError::new(RpcError::NOT_FOUND, message)
    }

    /// [`RpcError::FAILED`]
    #[must_use]
    pub fn failed(message: impl Into<String>) -> RpcError {
        RpcError::new(RpcError::FAILED, message)
    }

    /// [`RpcError::INTERNAL`]
    #[must_use]
    pub fn internal(message: impl Into<String>) -> RpcError {
        RpcError::new(RpcError::INTERNAL, message)
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RpcError {}
