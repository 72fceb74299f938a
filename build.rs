//! Compiles the wire contracts of `proto/` with protox, so that no `protoc` is needed.

/// The contracts, relative to `proto/`.
#[cfg(feature = "cluster")]
const CONTRACTS: [&str; 2] = ["deviceplugin/v1beta1/api.proto", "podresources/v1/api.proto"];

#[cfg_attr(
    not(feature = "cluster"),
    expect(clippy::unnecessary_wraps, reason = "only the cluster part compiles contracts")
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=proto");
    #[cfg(feature = "cluster")]
    compile()?;
    Ok(())
}

#[cfg(feature = "cluster")]
fn compile() -> Result<(), Box<dyn std::error::Error>> {
    for contract in CONTRACTS {
        let descriptors = protox::compile([contract], ["proto"])?;
        // Ordered maps: what goes to kubelet is the same bytes on every run.
        tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    }
    Ok(())
}
