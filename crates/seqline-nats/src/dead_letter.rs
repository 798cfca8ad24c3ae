//! What consumers of the stream gave up: list it, try it again, forget it.
