#pragma once

#include <atomic>
#include <cstdio>
#include <exception>
#include <vector>

// A test program is one file of TEST_CASE("a sentence") { CHECK(...); CHECK_THROWS(Type, ...); }
// blocks; this header brings main(). A failed check is reported and counted, and the test goes on;
// checks may be made from any thread.
namespace pinferry::testing {

struct TestCase {
    const char* sentence;
    void (*body)();
};

inline std::vector<TestCase>& test_cases() {
    static std::vector<TestCase> cases;
    return cases;
}

inline bool add(const char* sentence, void (*body)()) {
    test_cases().push_back({sentence, body});
    return true;
}

inline std::atomic<int>& failed_checks() {
    static std::atomic<int> count{0};
    return count;
}

inline void fail(const char* file, int line, const char* what) {
    std::fprintf(stderr, "\n%s:%d: failed: %s\n", file, line, what);
    ++failed_checks();
}

// Runs every test case. Returns the exit status: 0 if there were some and none failed.
inline int run() {
    int passed = 0, failed = 0;
    for (const TestCase& test : test_cases()) {
        const int before = failed_checks();
        try {
            test.body();
        } catch (const std::exception& error) {
            std::fprintf(stderr, "\nnot caught: %s\n", error.what());
            ++failed_checks();
        }
        const bool ok = failed_checks() == before;
        if (!ok) std::fprintf(stderr, "FAILED: %s\n", test.sentence);
        ++(ok ? passed : failed);
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace pinferry::testing

#define PINFERRY_JOIN_(a, b) a##b
#define PINFERRY_JOIN(a, b) PINFERRY_JOIN_(a, b)

#define TEST_CASE(sentence)                                                    \
    static void PINFERRY_JOIN(test_body_, __LINE__)();                         \
    [[maybe_unused]] static const bool PINFERRY_JOIN(test_added_, __LINE__) =  \
        pinferry::testing::add(sentence, PINFERRY_JOIN(test_body_, __LINE__)); \
    static void PINFERRY_JOIN(test_body_, __LINE__)()

#define CHECK(...)                                                                     \
    do {                                                                               \
        if (!(__VA_ARGS__)) pinferry::testing::fail(__FILE__, __LINE__, #__VA_ARGS__); \
    } while (false)

// Type comes first: CHECK_THROWS(Error, list.allocate(0)).
#define CHECK_THROWS(Type, ...)                                                         \
    do {                                                                                \
        bool thrown = false;                                                            \
        try {                                                                           \
            (void)(__VA_ARGS__);                                                        \
        } catch (const Type&) {                                                         \
            thrown = true;                                                              \
        }                                                                               \
        if (!thrown) {                                                                  \
            pinferry::testing::fail(__FILE__, __LINE__, #__VA_ARGS__ " throws " #Type); \
        }                                                                               \
    } while (false)

int main() { return pinferry::testing::run(); }
