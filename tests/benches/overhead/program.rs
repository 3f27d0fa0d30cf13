//! The programs, each as a line for `sh`, with `$RUN` in front of the command to profile.

use std::fs;
use std::path::Path;
use std::process::Command;

use selfwind_tests::target::is_installed;

/// One program.
pub(crate) struct Program {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// The command that it needs; without it the program is left out.
    needs: &'static str,
    line: &'static str,
}

/// All programs; `$W` is the directory of [`prepare`].
pub(crate) const ALL: [Program; 6] = [
    Program {
        name: "python",
        needs: "python3",
        line: "P=$(python3 -c 'import sys; print(sys.executable)'); $RUN \"$P\" -c 'import json, zlib
for i in range(180):
    text = json.dumps([{\"key\": k, \"value\": [k * i, str(k)]} for k in range(2500)])
    assert len(json.loads(text)) == 2500 and zlib.crc32(zlib.compress(text.encode(), 4))' >/dev/null",
    },
    Program { name: "gcc -O2", needs: "gcc", line: "$RUN gcc -O2 -c -o $W/big.o $W/big.c" },
    Program {
        name: "sqlite",
        needs: "sqlite3",
        line: "$RUN sqlite3 :memory: 'create table t as with recursive n(i) as (select 1 union all select i+1 from n \
               where i < 1200000) select i, i * 7919 % 100003 as k, hex(i) as s from n; create index x on t(k); select \
               count(*), sum(length(s)) from t join (select k as q from t where i % 7 = 0) on k = q; ' >/dev/null",
    },
    Program {
        name: "node",
        needs: "node",
        line: "$RUN node -e 'let n = 0; for (let r = 0; r < 90; r++) { const a = []; for (let i = 0; i < 40000; i++) \
               a.push({k: (i * 7919) % 100003, s: String(i)}); a.sort((x, y) => x.k - y.k); n += JSON.stringify(a).length } \
               console.log(n)' >/dev/null",
    },
    Program { name: "sort, 2 threads", needs: "c++", line: "$RUN $W/sort >/dev/null" },
    Program {
        name: "redis",
        needs: "redis-benchmark",
        line: "rm -f $W/s; $RUN redis-server --port 0 --unixsocket $W/s --save '' --daemonize no >/dev/null & \
               until redis-cli -s $W/s ping >/dev/null 2>&1; do sleep 0.05; done; \
               redis-benchmark -s $W/s -n 180000 -c 20 -t set,get,lpush,zadd -q >/dev/null; \
               redis-cli -s $W/s shutdown nosave >/dev/null 2>&1; wait",
    },
];

impl Program {
    /// Whether it is installed.
    pub(crate) fn is_there(&self) -> bool {
        is_installed(self.needs)
    }

    /// The command that runs it in `directory` with `prefix` before it.
    pub(crate) fn command(&self, prefix: &str, directory: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", self.line]).env("RUN", prefix).env("W", directory);
        command
    }
}

/// Creates the input of the programs.
pub(crate) fn prepare(directory: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/overhead/sort.cpp");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O2", "-fomit-frame-pointer", "-pthread", "-o"]);
    let status = compiler.arg(directory.join("sort")).arg(source).status().expect("c++ runs");
    assert!(status.success(), "c++: {status}");
    let mut text = String::from("#include <stdio.h>\n#include <string.h>\n");
    for i in 0..330 {
        text.push_str(&format!(
            "int f{i}(const char *s, int n) {{ int sum = {i}; for (int i = 0; i < n; i++) {{ switch (s[i] & 7) {{ case 0: sum += \
             strlen(s); break; case 1: sum *= n + {i}; break; case 2: sum ^= i << 3; break; default: sum -= s[n - i - 1]; }} if \
             (sum > 1000) sum /= 3; }} return printf(\"%d\", sum); }}\n"
        ));
    }
    fs::write(directory.join("big.c"), text).expect("writable");
}
