#!/usr/bin/env bash
# Two ways over plain HTTP, with nothing but curl. Usage: examples/recipes/curl.sh [BASE_URL]
# Prints the three answers of a round of ordinary chat requests, then the one answer of a whole round.
set -euo pipefail
base=${1:-http://localhost:8000/v1}
model=$(curl -sf "$base/models" | sed -E 's/.*"data": ?\[\{"id": ?"([^"]+)".*/\1/')
news=$(printf 'The mayor said that the party at Hobbs Cafe begins at five on the fourteenth. %.0s' 1 2 3 4 5 6 7 8 9 10 11 12)
session="recipe-curl-$$"

# 1. Ordinary requests: a header names the round, <TTSEP> stands around what the agents share.
say() {
    local answer  # printed in one go: three run at once
    answer=$(curl -sf "$base/chat/completions" -H 'content-type: application/json' \
        -H "X-TokenDance-Round-Id: $session:0" -H "X-TokenDance-Agent-Id: $1" -H 'X-TokenDance-Round-Size: 3' \
        -d '{"model": "'"$model"'", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user",
             "content": "You are '"$1"'.\n<TTSEP>'"$news"'<TTSEP>\nWhat do you do?"}]}')
    printf '%s\n' "$answer"
}
for agent in isabella klaus maria; do say "$agent" & done
wait

# 2. One request for the whole round: the shared text travels once.
member() {
    printf '{"agent_id": "%s", "messages": [{"role": "user", "content": [{"type": "text", "text": "You are %s.\\n"}, ' "$1" "$1"
    printf '{"type": "block", "ref": "news"}, {"type": "text", "text": "\\nWhat do you do?"}]}]}'
}
curl -sf "$base/rounds" -H 'content-type: application/json' -d '{"model": "'"$model"'", "round_id": "'"$session-whole"':1",
    "max_tokens": 8, "temperature": 0, "blocks": {"news": "'"$news"'"},
    "agents": ['"$(member isabella), $(member klaus), $(member maria)"']}'
echo
