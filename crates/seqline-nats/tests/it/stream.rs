//! The stream: made, adjusted, never harmed.
