//! Model double.
fn main() {}
