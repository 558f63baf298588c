//! Stories of forwarded connections.
