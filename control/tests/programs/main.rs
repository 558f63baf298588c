//! The two programs as their users meet them: what they print, and how they end.

mod credits;
mod inline;
mod operate;
mod running;
mod start;
mod support;
