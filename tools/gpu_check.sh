#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has PyTorch, a compiler and no network. Results go to
# the folder given as the first argument; PINFERRY_COMMIT names the commit where there is no history.
# Parts: build doctor tests zero sanitizer bench transfer arena deepspeed demo large-demo report (default:
# all). A failing part does not stop the others; the exit code says whether any failed.
set -u
out=${1:?usage: tools/gpu_check.sh OUTPUT_FOLDER [PART...]}
shift
parts=${*:-build doctor tests zero sanitizer bench transfer arena deepspeed demo large-demo report}
mkdir -p "$out"
python=${PYTHON:-python3}
# DeepSpeed and what it needs, where there is no network to install them from: wheels, unpacked.
if [[ -d .whl/site ]]; then
    PYTHONPATH="$PWD/.whl/site${PYTHONPATH:+:$PYTHONPATH}"
    PATH="$PWD/.whl/site/bin:$PATH" # ninja
fi
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

# NVML counts the whole device: what asks it runs alone. The rest runs several at a time where
# pytest-xdist is there, since many tests start an interpreter, which takes seconds to import PyTorch.
alone="reclaim or demo or memory_really or nvml"
parallel=()
$python -c 'import xdist' 2> /dev/null && parallel=(-n 12)
run_tests() {
    local code=0
    $python -m pytest -q -m gpu --collect-only --ignore=tests/zero -p no:cacheprovider -p no:benchmark 2> /dev/null |
        grep '::' > "$out/tests-collected.txt"
    gpu_tests parallel --ignore=tests/zero -k "not ($alone)" "${parallel[@]}" || code=1
    gpu_tests alone --ignore=tests/zero -k "$alone" || code=1
    return $code
}

gpu_tests() {
    local name=$1 limit=()
    shift
    # A test that hangs says where, and the others go on.
    $python -c 'import pytest_timeout' 2> /dev/null && limit=(--timeout 60 --timeout-method thread)
    timeout -s INT "${TESTS_AT_MOST_S:-600}" $python -m pytest -q -m gpu -p no:cacheprovider -p no:benchmark --tb=short \
        --durations=6 --junitxml="$out/tests-$name.xml" -o faulthandler_timeout=45 "${limit[@]}" "$@"
}

# Checks every access of the copies and of the stand-in kernels; slow, so few tests.
run_sanitizer() {
    compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all \
        "$python" -m pytest -q -m gpu -p no:cacheprovider tests/contract -k "equal" > "$out/sanitizer.txt" 2>&1
    local code=$?
    tail -n 4 "$out/sanitizer.txt"
    return $code
}

# DeepSpeed's FusedAdam is compiled beside ours, so that no benchmark waits for it. Where that fails, the
# benchmark says why.
run_build() {
    local builder="from deepspeed.ops.op_builder import FusedAdamBuilder; FusedAdamBuilder().load()"
    DS_SKIP_CUDA_CHECK=1 $python -c "$builder" > "$out/fused-adam.txt" 2>&1 &
    local beside=$! code=0
    MAX_JOBS="$(nproc)" $python setup.py --quiet build_ext --inplace || code=1
    wait "$beside"
    return $code
}

part build run_build
part doctor $python -m pinferry.cli doctor
part tests run_tests
part zero gpu_tests zero "${parallel[@]}" tests/zero
part sanitizer run_sanitizer
part bench $python -m pinferry.cli bench pinning large --device cuda:0 --json "$out/bench.json"
part transfer $python -m pinferry.cli bench transfer large --device cuda:0 --json "$out/transfer.json"
part arena $python -m pinferry.cli bench arena pinning --device cuda:0 --size 4GB --json "$out/arena.json"
part deepspeed $python -m pinferry.cli bench deepspeed --device cuda:0 --json "$out/deepspeed.json"
part demo $python -m pinferry.cli demo --device cuda:0 --json "$out/demo.json"
part large-demo $python -m pinferry.cli demo --device cuda:0 --params 1.5e9 --cycles 2 --steps 4 \
    --json "$out/demo-large.json"
part report $python tools/gpu_report.py "$out"

if ((${#failed[@]})); then
    printf '\nfailed: %s\n' "${failed[*]}"
    exit 1
fi
