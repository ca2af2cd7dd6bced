# Writes OUTPUT, a header that holds the text of SCRIPT.
file(READ ${SCRIPT} text)
file(WRITE ${OUTPUT} "#pragma once\n\nnamespace dfa::bench {\n\ninline constexpr const char* kTorchScript = R\"dfa_text(")
file(APPEND ${OUTPUT} "${text}")
file(APPEND ${OUTPUT} ")dfa_text\";\n\n}  // namespace dfa::bench\n")
