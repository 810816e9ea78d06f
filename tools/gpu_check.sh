#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has PyTorch, a compiler and no network. Results go to
# the folder given as the first argument; PINFERRY_COMMIT names the commit where there is no history.
# Parts: build doctor tests sanitizer bench demo report (default: all). A failing part does not stop the
# others; the exit code says whether any failed.
set -u
out=${1:?usage: tools/gpu_check.sh OUTPUT_FOLDER [PART...]}
shift
parts=${*:-build doctor tests sanitizer bench demo report}
mkdir -p "$out"
python=${PYTHON:-python3}
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
failed=()

part() {
    local name=$1
    shift
    case " $parts " in *" $name "*) ;; *) return ;; esac
    local start=$SECONDS
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
    printf '== %s took %d s\n' "$name" $((SECONDS - start))
}

run_tests() {
    # Many tests start an interpreter, which takes seconds to import PyTorch: several at a time where
    # pytest-xdist is there.
    local parallel=()
    $python -c 'import xdist' 2> /dev/null && parallel=(-n 6 --dist loadscope)
    $python -m pytest -q -m gpu -p no:cacheprovider "${parallel[@]}" --tb=short --durations=12 \
        --junitxml="$out/tests.xml"
}

# Checks every access of the copies and of the stand-in kernels; slow, so few tests.
run_sanitizer() {
    compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all \
        "$python" -m pytest -q -m gpu -p no:cacheprovider tests/contract -k "equal" > "$out/sanitizer.txt" 2>&1
    local code=$?
    tail -n 4 "$out/sanitizer.txt"
    return $code
}

run_demo() {
    $python -m pinferry.cli demo --device cuda:0 --json "$out/demo.json" &&
        $python -m pinferry.cli demo --device cuda:0 --params 1.5e9 --cycles 2 --steps 4 \
            --json "$out/demo-1.5b.json" | tail -n 40
}

part build env MAX_JOBS="$(nproc)" $python setup.py --quiet build_ext --inplace
part doctor $python -m pinferry.cli doctor
part tests run_tests
part sanitizer run_sanitizer
part bench $python -m pinferry.cli bench --device cuda:0 --json "$out/bench.json"
part demo run_demo
part report $python tools/gpu_report.py "$out"

if ((${#failed[@]})); then
    printf '\nfailed: %s\n' "${failed[*]}"
    exit 1
fi
