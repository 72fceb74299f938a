//! Compiles the device-plugin and pod-resources wire contracts of `proto/` with protox, so no `protoc` is needed.

fn main() {}
