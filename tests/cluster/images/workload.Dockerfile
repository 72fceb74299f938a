# The stand-in for a GPU job (examples/workload.rs). The harness puts the built program where a stage `build` would.
ARG BASE
FROM ${BASE}
COPY --from=build /out/workload /usr/local/bin/workload
ENTRYPOINT ["/usr/local/bin/workload"]
