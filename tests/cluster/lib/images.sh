# shellcheck shell=bash
# The images, made without a registry or a daemon and kept as docker archives in the cache, one per content.

IMAGES=$SLUICE_CACHE/images

# image_import ARCHIVE: into containerd, where kubelet finds it.
image_import() { ctr --namespace k8s.io images import "$1" >/dev/null; }

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
  rm -r "$work"
}

pause_archive() {
  printf '%s/pause-%s.tar\n' "$IMAGES" "$(sha256sum "$HARNESS/images/pause.c" | cut -c1-16)"
}

pause_image() {
  local archive root
  archive=$(pause_archive)
  [[ ! -e $archive ]] || return 0
  mkdir -p "$IMAGES"
  root=$(mktemp -d)
  gcc -Os -static -s -Wall -Wextra -Werror -o "$root/pause" "$HARNESS/images/pause.c"
  archive_of_folder "$root" localhost/pause:dev /pause "$archive"
  rm -r "$root"
}

images_build() { die "not there yet"; }
