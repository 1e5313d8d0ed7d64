# Every target works from an empty clone, without root unless it says otherwise, and without a terminal. Tools are built from
# pinned modules.

GOLANGCI_LINT_VERSION := v2.15.0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
CLI     := github.com/safedrain/safedrain/internal/cli
LDFLAGS := -s -w -X $(CLI).Version=$(VERSION)

# With the same flags everywhere, tests, vet and the control plane share what the Go tool compiles: an empty cache is filled
# once. Without DWARF the compiler has a sixth less to do, and what is released is stripped of it anyway.
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath -gcflags=all=-dwarf=false

# As what is released; programs and tests link in a quarter of the time, for nothing is linked that nobody calls.
export CGO_ENABLED := 0

# Of go vet there is `make verify`: beside tests it looks at every dependency once more.
TEST := go test -vet=off

# The program under test, built once for all tests.
PROGRAM := $(CURDIR)/bin/test/safedrain

TEST_FLAGS   ?=
TEST_TIMEOUT ?= 25m
BENCH        ?= .
BENCH_FLAGS  ?= -benchtime 1x -timeout 60m
FUZZTIME     ?= 60s
EXAMPLE      ?= testdata/example/before

# The tests whose inputs are random: `make sweep` tries all of them.
SWEEPS := Against|RealController|Agree|Random|Crowd

# The data plane lab that stays: its name, and -nodes N, -proxy-mode nftables|iptables, -ipv6.
DATAPLANE_NAME  ?= lab
DATAPLANE_FLAGS ?=

# The Debian packages of the data plane lab and of the balancers in front of it.
DATAPLANE_PACKAGES := arping conntrack frr haproxy iproute2 iptables nftables socat tcpdump util-linux

# What shows that generated parts of the README are up to date; empty to leave that out.
README_CHECK ?= go run ./internal/cmd/readme -check

# The image of the gate, built with ko: where it goes, and flags such as --push=false --oci-layout-path=DIR.
KO_VERSION  := v0.19.1
IMAGE_REPO  ?= ghcr.io/safedrain/safedrain
IMAGE_FLAGS ?=

LINT := $(CURDIR)/.cache/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint

.DEFAULT_GOAL := help
.PHONY: help build program test test-fast test-race sweep controlplane lint verify cluster cluster-down dataplane dataplane-full dataplane-up dataplane-down dataplane-packages bench fuzz manifests image

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-20s%s\n", $$1, $$2}'

build: ## build bin/safedrain
	go build -ldflags '$(LDFLAGS)' -o bin/safedrain ./cmd/safedrain

program:
	go build -buildvcs=false -ldflags '-s -w' -o $(PROGRAM) ./cmd/safedrain

test-fast: program ## run the tests that need no cluster
	SAFEDRAIN_TEST_BINARY=$(PROGRAM) $(TEST) $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) ./...

test-race: program ## run the tests that need no cluster under the race detector (needs a C compiler)
	SAFEDRAIN_TEST_BINARY=$(PROGRAM) CGO_ENABLED=1 $(TEST) -race -short -timeout $(TEST_TIMEOUT) ./...

test: test-fast controlplane ## run every test; the real control plane they need is built on first use
	cd test && SAFEDRAIN_TEST_BINARY=$(PROGRAM) $(TEST) -count=1 -p 3 $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) ./e2e ./gate ./hooks ./... # the longest first; what programs did is never taken from Go's cache

controlplane: ## build the control plane for tests into the cache, if it is not there
	@echo "control plane: built on first use, about 15 minutes on two cores; then cached (SAFEDRAIN_TEST_BIN names ready binaries)"
	cd test && go run ./cmd/cluster build

sweep: controlplane ## try all random inputs against Kubernetes' own code, of which `make test` tries a part
	cd test && SAFEDRAIN_TEST_SWEEP=1 $(TEST) $(TEST_FLAGS) -count=1 -v -timeout 2h -run '$(SWEEPS)' ./guardtest ./placement ./gate

cluster: controlplane ## start a control plane that stays, with fake nodes and the example, and print its kubeconfig
	cd test && go run ./cmd/cluster up $(if $(EXAMPLE),-example $(abspath $(EXAMPLE)))

cluster-down: ## end what `make cluster` started
	cd test && go run ./cmd/cluster down

dataplane: controlplane ## test the data plane and measure drains on it, a short form of about thirteen minutes; needs root, see dataplane-packages
	cd test && DATAPLANE=short $(TEST) -count=1 -p 1 -timeout 20m $$(go list ./dataplane/... | grep -v /experiments)
	cd test && DATAPLANE=short $(TEST) -count=1 -v -timeout 15m ./dataplane/experiments

dataplane-full: controlplane ## measure everything, five times in both modes of kube-proxy, into docs/results; goes on where it was stopped
	cd test && DATAPLANE=full DATAPLANE_RESULTS='$(CURDIR)/docs/results' $(TEST) -count=1 -v -timeout 6h ./dataplane/experiments

dataplane-up: controlplane ## start a cluster that stays and carries packets, on network namespaces; needs root
	cd test && go run ./cmd/dataplane up $(DATAPLANE_NAME:%=-name %) $(DATAPLANE_FLAGS)

dataplane-down: ## end what `make dataplane-up` started
	cd test && go run ./cmd/dataplane down $(DATAPLANE_NAME:%=-name %)

dataplane-packages: ## install what the data plane and its balancers need, on Debian as root; none of it starts by itself
	@dpkg -s $(DATAPLANE_PACKAGES) >/dev/null 2>&1 || apt-get update
	RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(DATAPLANE_PACKAGES)

bench: build controlplane ## run the benchmarks on the real control plane
	cd test && go test -run '^$$' -bench '$(BENCH)' $(BENCH_FLAGS) ./bench/...

fuzz: ## run every fuzz target for FUZZTIME each
	@go list -f '{{if .TestGoFiles}}{{.ImportPath}}{{end}}{{if .XTestGoFiles}} {{.ImportPath}}{{end}}' ./... | tr ' ' '\n' | sort -u | while read -r pkg; do \
		[ -n "$$pkg" ] || continue; \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg || exit 1; \
		done; \
	done

$(LINT):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

lint: $(LINT) ## run golangci-lint on both modules
	$(LINT) run ./...
	cd test && $(LINT) run --config ../.golangci.yml ./...

manifests: ## render deploy/install and what the chart shares with the kustomizations
	cd test && go run ./deploy/render

image: ## build the image of the gate for every platform and push it to IMAGE_REPO
	KO_DOCKER_REPO=$(IMAGE_REPO) VERSION=$(VERSION) go run github.com/google/ko@$(KO_VERSION) build --bare --tags=$(VERSION) $(IMAGE_FLAGS) ./cmd/safedrain

verify: ## check formatting, module files, go vet, the generated parts of the README and the rendered manifests
	@out=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
		if [ -n "$$out" ]; then echo "not formatted, run gofmt -w on:"; echo "$$out"; exit 1; fi
	go mod tidy -diff
	cd test && go mod tidy -diff
	go vet ./...
	cd test && go vet ./...
	$(README_CHECK)
	cd test && go run ./deploy/render -check
