//! attach
