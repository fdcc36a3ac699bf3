#!/bin/sh
# Builds and runs the native tests: build.sh asan|tsan|plain [part of a test's name].
# Prints one line per test and a summary; fails when a test fails.
# build.sh bench: what adding and reading entries costs, in a temporary directory under TMPDIR.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
native="$here/../../src/bookie_native"
variant=${1:-asan}
filter=${2:-}
out="${NATIVE_TESTS_OUT:-$here/../../build/native-tests}/$variant"
mkdir -p "$out"
compiler=${CC:-cc}
flags="-std=gnu11 -g1 -Wall -Wextra -Werror -I$native -I$here"
case "$variant" in
asan) flags="$flags -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
tsan) flags="$flags -O1 -fno-omit-frame-pointer -fsanitize=thread" ;;
plain) flags="$flags -O2" ;;
bench) flags="$flags -O3" ;;
*) echo "usage: build.sh asan|tsan|plain [part of a test's name]" >&2; exit 2 ;;
esac

# Compiles $1 to an object unless that is newer than the source and every header.
compile() {
    object="$out/$(basename "$1" .c).o"
    newest=$(ls -t "$1" "$native"/*.h "$here"/*.h "$object" 2>/dev/null | head -n 1)
    [ "$newest" = "$object" ] || $compiler $flags -c "$1" -o "$object"
    objects="$objects $object"
}

objects=""
for source in "$native"/*.c "$here"/*.c; do
    case "$source" in
    */module.c | */module_faults.c) ;; # they know Python; tests/test_storage.py tests them
    */test_*.c | */bench_*.c) ;;
    *) compile "$source" ;;
    esac
done
shared=$objects
# memory.c decides which allocations of our own code fail.
wrap="-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=mmap"

if [ "$variant" = bench ]; then
    objects=""
    compile "$here/bench_storage.c"
    $compiler $flags $shared $objects -o "$out/bench_storage" $wrap -lpthread
    for what in "1024 500000 128" "1024 40000 1" "131072 4000 8" "100 4000000 1000"; do
        directory=$(mktemp -d)
        # shellcheck disable=SC2086
        "$out/bench_storage" "$directory" $what
        rm -rf "$directory"
    done
    exit 0
fi

# TSan refuses to run where the kernel spreads addresses more widely than it knows.
run=""
if [ "$variant" = tsan ] && setarch -R true 2>/dev/null; then run="setarch -R"; fi

passed=0
failed=0
for source in "$here"/test_*.c; do
    objects=""
    compile "$source"
    program="$out/$(basename "$source" .c)"
    $compiler $flags $shared $objects -o "$program" $wrap -lpthread
    if [ -n "$filter" ] && ! grep -q "{\"[a-z0-9_]*$filter" "$source"; then
        continue
    fi
    # A sanitizer ends the program without a line of its own; that is a failure too.
    if $run "$program" $filter >"$out/output.txt" 2>&1; then status=0; else status=$?; fi
    cat "$out/output.txt"
    ok=$(grep -c '^ok ' "$out/output.txt" || true)
    bad=$(grep -c '^FAILED ' "$out/output.txt" || true)
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        echo "FAILED  $(basename "$program") ended with status $status"
        bad=1
    fi
    passed=$((passed + ok))
    failed=$((failed + bad))
done
echo "native tests ($variant): $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
