# The few container images that the cluster itself needs, packed as Docker
# archives from programs that are already here: no registry, no engine.

# The names stay fixed; the content comes from this repository's own build, and
# each cluster starts with an empty image store.
readonly IMAGE_PREFIX=agent-workspace-operator.test
readonly IMAGE_PAUSE=$IMAGE_PREFIX/pause:1
readonly IMAGE_COREDNS=$IMAGE_PREFIX/coredns:1
readonly IMAGE_BUSYBOX=$IMAGE_PREFIX/busybox:1

# The folder of the archives, named by what they are made of.
images_folder() {
    local hash
    component_folders
    hash=$({ cat "$HERE/images/pause.c" "$HERE/lib/images.sh"
        sha256sum /bin/busybox
        basename "${FOLDERS[coredns]}"; } | sha256sum)
    printf '%s/components/images-%s' "$CACHE" "${hash:0:16}"
}

images_build() {
    local folder new
    folder=$(images_folder)
    [[ ! -e $folder/complete ]] || return 0
    need_for_build
    packages_install
    mkdir -p "$CACHE/components"
    new=$(mktemp -d "$CACHE/components/.new-XXXXXX")
    mkdir -p "$new"/{pause,coredns,busybox/bin,busybox/tmp,busybox/etc}
    gcc -static -Os -s -Wall -Wextra -o "$new/pause/pause" "$HERE/images/pause.c"
    cp "${FOLDERS[coredns]}/coredns" "$new/coredns/coredns"
    cp /bin/busybox "$new/busybox/bin/busybox"
    local applet
    for applet in $(/bin/busybox --list); do
        [[ $applet == busybox ]] || ln -s busybox "$new/busybox/bin/$applet"
    done
    chmod 1777 "$new/busybox/tmp"
    printf 'root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n' >"$new/busybox/etc/passwd"
    printf 'root:x:0:\nuser:x:1000:\n' >"$new/busybox/etc/group"
    image_pack "$new/pause" "$IMAGE_PAUSE" '"/pause"' "$new/pause.tar"
    image_pack "$new/coredns" "$IMAGE_COREDNS" '"/coredns"' "$new/coredns.tar"
    image_pack "$new/busybox" "$IMAGE_BUSYBOX" '"/bin/sh"' "$new/busybox.tar"
    rm -rf "$new"/{pause,coredns,busybox}
    touch "$new/complete"
    chmod 755 "$new"
    rm -rf "$folder"
    mv -T "$new" "$folder"
}

# image_pack FOLDER NAME ENTRYPOINT ARCHIVE: a Docker archive with one layer. Times and
# owners are fixed, so the same files give the same image.
image_pack() {
    local root=$1 name=$2 entrypoint=$3 archive=$4 work layer configuration
    work=$(mktemp -d)
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$root" -cf "$work/layer.tar" .
    layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
    configuration=$(printf '{"architecture":"%s","os":"linux","created":"1970-01-01T00:00:00Z","config":{"Entrypoint":[%s],"Env":["PATH=/bin:/"],"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"1970-01-01T00:00:00Z"}]}' \
        "$(image_architecture)" "$entrypoint" "$layer")
    printf '%s' "$configuration" >"$work/config.json"
    printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" >"$work/manifest.json"
    tar --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work" -cf "$archive" manifest.json config.json layer.tar
    rm -rf "$work"
}

image_architecture() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) uname -m ;;
    esac
}

# image_import ARCHIVE: into the cluster's containerd, where the kubelet looks.
image_import() {
    "${PROGRAM[ctr]}" --address "$DATA/run/containerd.sock" --namespace k8s.io \
        images import "$1" >>"$LOGS/images.log" 2>&1 || { tail -n 5 "$LOGS/images.log" >&2; return 1; }
}

cluster_load_image() {
    local archive
    (($#)) || die "load-image needs at least one archive"
    cluster_is_running || die "the cluster $NAME is not running"
    [[ -S $DATA/run/containerd.sock ]] || die "the cluster $NAME has no node"
    load_programs
    for archive; do
        [[ -r $archive ]] || die "cannot read $archive"
        image_import "$archive" || die "$archive could not be imported"
    done
}
