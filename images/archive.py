#!/usr/bin/env python3
"""Packs image archives without a container engine.

Two commands:
  layer TAR FOLDER          gzip a layer's tar into FOLDER and note its digests (done once for each base)
  image --name NAME …       write one archive: the base layer of FOLDER and one small layer with the binary

The archive is an OCI layout that also carries Docker's manifest.json, so `ctr images import`, `docker load`,
`podman load` and `kind load image-archive` all read it. The same inputs give the same bytes: every time is 0,
every owner root, every list sorted. This file knows nothing of Debian and nothing of the cluster.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

CHUNK = 1 << 20
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"


class Hashing(io.RawIOBase):
    """A writer that passes bytes on and keeps their SHA-256 and count."""

    def __init__(self, inner):
        self.inner, self.sha, self.size = inner, hashlib.sha256(), 0

    def writable(self):
        return True

    def write(self, data):
        self.sha.update(data)
        self.size += len(data)
        return self.inner.write(data)


def compress(source, target):
    """Gzip `source` into `target`; both streams. Answers the digests of the plain and of the compressed bytes."""
    plain = hashlib.sha256()
    packed = Hashing(target)
    # mtime=0 and no name: gzip's header would otherwise differ by run. Level 6 is where time still buys size.
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=6, mtime=0) as writer:
        while data := source.read(CHUNK):
            plain.update(data)
            writer.write(data)
    return {"diff": "sha256:" + plain.hexdigest(), "digest": "sha256:" + packed.sha.hexdigest(), "size": packed.size}


def layer(arguments):
    """Command `layer`: writes layer.tar.gz and layer.json; the second last, so that its presence means complete."""
    os.makedirs(arguments.folder, exist_ok=True)
    with open(arguments.tar, "rb") as source, open(os.path.join(arguments.folder, "layer.tar.gz"), "wb") as target:
        facts = compress(source, target)
    partial = os.path.join(arguments.folder, "layer.json.partial")
    with open(partial, "w") as target:
        json.dump(facts, target)
    os.replace(partial, os.path.join(arguments.folder, "layer.json"))


def binary_layer(path, inside):
    """A layer that holds one program, owned by root, mode 0755."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar, open(path, "rb") as program:
        entry = tarfile.TarInfo(inside.lstrip("/"))
        entry.size, entry.mode, entry.mtime = os.fstat(program.fileno()).st_size, 0o755, 0
        tar.addfile(entry, program)
    plain.seek(0)
    packed = io.BytesIO()
    return compress(plain, packed), packed.getvalue()


def add(tar, name, size, source):
    """One file of the archive."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 0
    tar.addfile(entry, source)


def blob(data):
    """Digest and path of a small blob."""
    digest = hashlib.sha256(data).hexdigest()
    return "sha256:" + digest, "blobs/sha256/" + digest


def encode(value):
    """JSON in one fixed form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def image(arguments):
    """Command `image`."""
    inside = "/usr/local/bin/" + os.path.basename(arguments.binary)
    with open(os.path.join(arguments.base, "layer.json")) as source:
        base = json.load(source)
    top, top_bytes = binary_layer(arguments.binary, inside)
    config = encode({
        "architecture": arguments.architecture,
        "os": "linux",
        "config": {
            "Entrypoint": [inside],
            "Env": arguments.env,
            "Labels": dict(label.split("=", 1) for label in arguments.label),
            "User": arguments.user,
            "WorkingDir": arguments.directory,
        },
        "rootfs": {"type": "layers", "diff_ids": [base["diff"], top["diff"]]},
        "history": [
            {"created": "1970-01-01T00:00:00Z", "created_by": "base files"},
            {"created": "1970-01-01T00:00:00Z", "created_by": "the program"},
        ],
    })
    config_digest, config_path = blob(config)
    layers = [{"mediaType": LAYER, "digest": each["digest"], "size": each["size"]} for each in (base, top)]
    manifest = encode({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": config_digest, "size": len(config)},
        "layers": layers,
    })
    manifest_digest, manifest_path = blob(manifest)
    tag = arguments.name.rsplit(":", 1)[1]
    index = encode({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [{
            "mediaType": MANIFEST,
            "digest": manifest_digest,
            "size": len(manifest),
            "annotations": {"io.containerd.image.name": arguments.name, "org.opencontainers.image.ref.name": tag},
        }],
    })
    paths = ["blobs/sha256/" + each["digest"].removeprefix("sha256:") for each in layers]
    # Docker names what stands on its own hub without the host.
    short = arguments.name.removeprefix("docker.io/").removeprefix("library/")
    docker = encode([{"Config": config_path, "RepoTags": [short], "Layers": paths}])
    partial = arguments.output + ".partial"
    with tarfile.open(partial, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in [
            ("oci-layout", encode({"imageLayoutVersion": "1.0.0"})),
            ("index.json", index),
            ("manifest.json", docker),
            (config_path, config),
            (manifest_path, manifest),
            (paths[1], top_bytes),
        ]:
            add(tar, name, len(data), io.BytesIO(data))
        with open(os.path.join(arguments.base, "layer.tar.gz"), "rb") as source:
            add(tar, paths[0], base["size"], source)
    os.replace(partial, arguments.output)
    print(f"{arguments.output}\t{arguments.name}\t{manifest_digest}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("layer")
    one.add_argument("tar")
    one.add_argument("folder")
    one.set_defaults(run=layer)
    two = commands.add_parser("image")
    two.add_argument("--name", required=True, help="full reference, docker.io/… included")
    two.add_argument("--base", required=True, help="folder written by `layer`")
    two.add_argument("--binary", required=True)
    two.add_argument("--architecture", required=True, help="as images name it: amd64, arm64")
    two.add_argument("--user", required=True)
    two.add_argument("--directory", default="/")
    two.add_argument("--env", action="append", default=[])
    two.add_argument("--label", action="append", default=[])
    two.add_argument("--output", required=True)
    two.set_defaults(run=image)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
