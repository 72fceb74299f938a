# shellcheck shell=bash
# The images, made without a registry or a daemon, and kept in the cache as docker archives. An archive's name holds a
# hash of all that goes into it, so what did not change is not built again.

IMAGES=$SLUICE_CACHE/images
BASE_PACKAGES=libc6,libgcc-s1,ca-certificates
: "${SLUICE_PROFILE:=release}"

# with_scratch COMMAND...: temporary files go where they are removed together, also when COMMAND fails. For `step`,
# whose subshell ends with it.
with_scratch() {
  TMPDIR=$(mktemp -d)
  export TMPDIR
  chmod 755 "$TMPDIR"
  trap 'rm -rf "$TMPDIR"' EXIT
  "$@"
}

# image_import ARCHIVE: into containerd, where kubelet finds it.
image_import() { ctr --namespace k8s.io images import "$1" >/dev/null; }

# content_key FILE-OR-TEXT...: of the contents of files, and of what is no file itself.
content_key() {
  local item
  for item in "$@"; do
    if [[ -f $item ]]; then
      sha256sum <"$item"
    else
      printf '%s\n' "$item"
    fi
  done | sha256sum | cut -c1-16
}

# archive_of_folder FOLDER REFERENCE ENTRYPOINT FILE: an image of one layer that holds FOLDER, written to FILE.
archive_of_folder() {
  local work layer config
  work=$(mktemp -d)
  tar --create --file "$work/layer.tar" --directory "$1" --sort=name --mtime=@0 --owner=0 --group=0 \
    --numeric-owner .
  layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  jq --null-input --compact-output --arg layer "sha256:$layer" --arg entrypoint "$3" '{
    architecture: "amd64", os: "linux", created: "1970-01-01T00:00:00Z",
    config: {Entrypoint: [$entrypoint], Env: ["PATH=/usr/local/bin:/usr/bin:/bin"]},
    rootfs: {type: "layers", diff_ids: [$layer]}
  }' >"$work/config.json"
  config=$(sha256sum "$work/config.json" | cut -d' ' -f1)
  mv "$work/config.json" "$work/$config.json"
  jq --null-input --compact-output --arg config "$config.json" --arg reference "$2" \
    '[{Config: $config, RepoTags: [$reference], Layers: ["layer.tar"]}]' >"$work/manifest.json"
  tar --create --file "$4.new" --directory "$work" manifest.json "$config.json" layer.tar
  mv "$4.new" "$4"
}

pause_archive() { printf '%s/pause-%s.tar\n' "$IMAGES" "$(content_key "$HARNESS/images/pause.c")"; }

pause_image() {
  local archive root
  archive=$(pause_archive)
  [[ ! -e $archive ]] || return 0
  mkdir -p "$IMAGES"
  root=$(mktemp -d)
  gcc -Os -static -s -Wall -Wextra -Werror -o "$root/pause" "$HARNESS/images/pause.c"
  archive_of_folder "$root" localhost/pause:dev /pause "$archive"
}

# tool_archive TOOL: where the image of one of the built components is.
tool_archive() { printf '%s/%s-%s.tar\n' "$IMAGES" "$1" "$(tools_key)"; }

# tool_image TOOL REFERENCE: the static program and nothing else.
tool_image() {
  local archive root
  archive=$(tool_archive "$1")
  [[ ! -e $archive ]] || return 0
  root=$(mktemp -d)
  mkdir -p "$root/usr/local/bin"
  cp "$(tools_folder)/$1" "$root/usr/local/bin/"
  archive_of_folder "$root" "$2" "/usr/local/bin/$1" "$archive"
}

# build_buildah ARGUMENT...: an ordinary build in a store of our own, without a daemon or privileges of a container.
build_buildah() {
  local store=$SLUICE_CACHE/buildah
  mkdir -p "$store/root" "$store/run"
  BUILDAH_ISOLATION=chroot buildah --storage-driver vfs --root "$store/root" --runroot "$store/run" "$@"
}

# The runtime's own release: a program built here finds its C library again in the image.
base_suite() { sed -n "s/^VERSION_CODENAME=//p" /etc/os-release; }

base_reference() { printf 'localhost/base:%s\n' "$(content_key "$(base_suite) $BASE_PACKAGES")"; }

base_image() {
  local reference root
  reference=$(base_reference)
  ! build_buildah inspect --type image "$reference" >/dev/null 2>&1 || return 0
  root=$(mktemp -d)
  mmdebstrap --quiet --variant=extract --include="$BASE_PACKAGES" "$(base_suite)" "$root/base.tar"
  printf 'FROM scratch\nADD base.tar /\n' >"$root/Dockerfile"
  build_buildah build --quiet --tag "$reference" "$root" >/dev/null
}

# image_of_binary NAME BINARY DOCKERFILE: the image localhost/NAME:dev. BINARY stands where the stage `build` of the
# Dockerfile would have left it, in /out; that stage itself needs a network and a compiler, and is not run.
image_of_binary() {
  local archive stage
  archive=$(binary_archive "$@")
  [[ ! -e $archive ]] || return 0
  stage=$(mktemp -d)
  mkdir "$stage/out"
  cp "$2" "$stage/out/$1"
  # As the Dockerfile's own build stage does.
  [[ $1 != sluice ]] || ln -s sluice "$stage/out/kubectl-sluice"
  build_buildah build --quiet --file "$3" --build-arg "BASE=$(base_reference)" \
    --build-context "build=$stage" --tag "localhost/$1:dev" "$stage" >/dev/null
  rm -f "$archive.new"
  build_buildah push --quiet "localhost/$1:dev" "docker-archive:$archive.new:localhost/$1:dev"
  mv "$archive.new" "$archive"
  image_prune "$1"
}

binary_archive() { printf '%s/%s-%s.tar\n' "$IMAGES" "$1" "$(content_key "$2" "$3" "$(base_reference)")"; }

# image_prune NAME: each build of ours makes another archive; the newest three are enough for going back and forth.
image_prune() {
  local old
  find "$IMAGES" -maxdepth 1 -name "$1-????????????????.tar" -printf '%T@ %p\n' | sort -rn | tail -n +4 |
    cut -d' ' -f2- | while read -r old; do rm "$old"; done
  build_buildah rmi --prune >/dev/null
}

# product_folder: where cargo leaves what `images` builds.
product_folder() {
  local target
  target=$(cd "$REPOSITORY" && cargo metadata --format-version 1 --no-deps | jq -r .target_directory)
  printf '%s/%s\n' "$target" "${SLUICE_PROFILE/#dev/debug}"
}

cargo_build() {
  local flags=(--profile "$SLUICE_PROFILE" --bin sluice --example workload)
  # The end-to-end tests build with this feature; the same flags share the work.
  [[ $SLUICE_PROFILE != dev ]] || flags+=(--features e2e)
  (
    cd "$REPOSITORY"
    # Started by a test or benchmark, this runs under a cargo already. What that says of its package makes build
    # scripts run anew, and with them everything that is built on them.
    unset ${!CARGO_PKG_@} ${!CARGO_MANIFEST_@} CARGO_CRATE_NAME CARGO_BIN_NAME CARGO_PRIMARY_PACKAGE CARGO OUT_DIR
    cargo build "${flags[@]}"
  )
}

# images_build: everything that a test or the demo runs in pods.
images_build() {
  local lock target archives
  need_root
  bash "$HARNESS/install-packages.sh"
  bash "$HARNESS/build-tools.sh" >/dev/null
  mkdir -p "$IMAGES"
  say "Images (the first time, cargo takes minutes):"
  # cargo keeps two builds of one checkout apart itself.
  step images "cargo build ($SLUICE_PROFILE)" cargo_build
  exec {lock}>"$IMAGES/lock"
  flock --nonblock "$lock" || {
    say "cluster: another build of the images is at work; waiting for it"
    flock "$lock"
}
  target=$(product_folder)
  step images 'base image' with_scratch base_image
  step images 'localhost/sluice:dev' \
    with_scratch image_of_binary sluice "$target/sluice" "$REPOSITORY/Dockerfile"
  step images 'localhost/workload:dev' \
    with_scratch image_of_binary workload "$target/examples/workload" "$HARNESS/images/workload.Dockerfile"
  step images "$(scheduler_reference)" \
    with_scratch tool_image kube-scheduler "$(scheduler_reference)"
  step images 'localhost/kubectl:dev' with_scratch tool_image kubectl localhost/kubectl:dev
  archives=(
    "$(binary_archive sluice "$target/sluice" "$REPOSITORY/Dockerfile")"
    "$(binary_archive workload "$target/examples/workload" "$HARNESS/images/workload.Dockerfile")"
    "$(tool_archive kube-scheduler)" "$(tool_archive kubectl)"
  )
  if space_pid >/dev/null; then
    step containerd "import into cluster $NAME" in_cluster import "${archives[@]}"
  fi
  printf '%s\n' "${archives[@]}"
}

scheduler_reference() { printf 'localhost/kube-scheduler:%s\n' "$(tool_version k8s.io/kubernetes)"; }
