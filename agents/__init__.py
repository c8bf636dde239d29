"""Language-model policies, critics and generation backends."""
