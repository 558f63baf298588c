//! Two planes.
