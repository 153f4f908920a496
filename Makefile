# The commands of this repository; README.md tells what each does. The work is in scripts/.
.PHONY: up down clean-cluster setup test test-fast test-long lint gen check-gen bench e2e images
.NOTPARALLEL:

up:             ; @scripts/up
down:           ; @scripts/down
clean-cluster:  ; @scripts/down --clean
setup:          ; @scripts/setup --test
test:           ; @scripts/test
test-fast:      ; @scripts/test --fast
test-long:      ; @scripts/test --long
lint:           ; @scripts/lint
gen:            ; @scripts/gen
check-gen:      ; @scripts/gen --check
bench:          ; @scripts/bench
e2e:            ; @scripts/test --e2e
images:         ; @scripts/images
