//! The two programs as their users meet them: what they print, and how they end.

mod credits;
mod doctor;
mod inline;
mod mistakes;
mod operate;
mod operators;
mod places;
mod running;
mod start;
mod support;
