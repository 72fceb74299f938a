# Image of Sluice: controller, extender, node agent and command line in one binary.
#
# The binary is linked against glibc: the node agent opens libnvidia-ml.so.1 at run time, which a
# static binary cannot. The base of the build is no newer than the base of the image, for the same
# reason.
ARG RUST_VERSION=1.95.0
ARG BASE=debian:bookworm-slim

FROM rust:${RUST_VERSION}-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin sluice \
    && install -D target/release/sluice /out/sluice \
    # kubectl finds it by this name: `kubectl sluice timeline`.
    && ln -s sluice /out/kubectl-sluice

# Nothing runs in this stage, so that the base may be without a shell.
FROM ${BASE}
COPY --from=build /out/ /usr/local/bin/
# By number, so that kubelet can tell that it is not root. The chart runs the node agent as root.
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/sluice"]
