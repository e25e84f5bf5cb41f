# The commands of the daily work; CONTRIBUTING.md says what each is for.
.PHONY: build test format check bench demo experiments

build: ; CGO_ENABLED=0 go build -trimpath -o hearsay ./cmd/hearsay
test: ; go test ./...
format: ; go run mvdan.cc/gofumpt@v0.12.0 -w .
check: ; bash .ci/run
bench: ; go test -run '^$$' -bench . -benchtime 1s ./...
demo: ; go run ./cmd/hearsay demo
experiments: ; experiments/policies.sh
