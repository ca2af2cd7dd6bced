// clang-format off
// What user_text_source() makes of the texts in user_text_test.cpp, which sees that it is so, in structs of
// other names; QuickText1 is Text1 of 16 bits.

struct Text0 {
  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, float& share) {
    [[maybe_unused]] const int mv0 = at.kv_idx;
    [[maybe_unused]] const int mv1 = at.b;
    [[maybe_unused]] const int mv2 = text::add(mv0, mv1);
    [[maybe_unused]] const int mv3 = 5;
    [[maybe_unused]] const int mv4 = text::remainder(mv2, mv3);
    [[maybe_unused]] const int mv5 = at.h;
    [[maybe_unused]] const int mv6 = 5;
    [[maybe_unused]] const int mv7 = text::remainder(mv5, mv6);
    [[maybe_unused]] const bool mv8 = mv4 != mv7;
    [[maybe_unused]] const int mv9 = at.q_idx;
    [[maybe_unused]] const int mv10 = at.kv_idx;
    [[maybe_unused]] const int mv11 = mv9 ^ mv10;
    [[maybe_unused]] const int mv12 = 6;
    [[maybe_unused]] const int mv13 = text::shift_right(mv11, mv12);
    [[maybe_unused]] const int mv14 = 1;
    [[maybe_unused]] const bool mv15 = mv13 <= mv14;
    [[maybe_unused]] const bool mv16 = mv8 && mv15;
    const bool shown = mv16;
    [[maybe_unused]] const float sv0 = score;
    [[maybe_unused]] const float sd0 = 1.0f;
    [[maybe_unused]] const float sv1 = 0.05f;
    [[maybe_unused]] const int sv2 = at.q_idx;
    [[maybe_unused]] const int sv3 = at.sk;
    [[maybe_unused]] const int sv4 = text::add(sv2, sv3);
    [[maybe_unused]] const int sv5 = at.sq;
    [[maybe_unused]] const int sv6 = text::subtract(sv4, sv5);
    [[maybe_unused]] const int sv7 = at.kv_idx;
    [[maybe_unused]] const int sv8 = text::subtract(sv6, sv7);
    [[maybe_unused]] const int sv9 = text::absolute(sv8);
    [[maybe_unused]] const float sv10 = static_cast<float>(sv9);
    [[maybe_unused]] const float sv11 = text::multiply(sv1, sv10);
    [[maybe_unused]] const float sv12 = text::subtract(sv0, sv11);
    [[maybe_unused]] const float sd12 = sd0 - 0.0f;
    share = sd12;
    return shown ? sv12 : -ptx::infinity();
  }
};

struct Text1 {
  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, float& share) {
    [[maybe_unused]] const float sv0 = 5.0f;
    [[maybe_unused]] const float sv1 = score;
    [[maybe_unused]] const float sd1 = 1.0f;
    [[maybe_unused]] const float sv2 = 5.0f;
    [[maybe_unused]] const float sv3 = text::divide(sv1, sv2);
    [[maybe_unused]] const float sd3 = sd1 / sv2;
    [[maybe_unused]] const float sv4 = tanhf(sv3);
    [[maybe_unused]] const float sd4 = (1 - sv4 * sv4) * sd3;
    [[maybe_unused]] const float sv5 = text::multiply(sv0, sv4);
    [[maybe_unused]] const float sd5 = sv0 * sd4;
    [[maybe_unused]] const float sv6 = 0.1f;
    [[maybe_unused]] const int sv7 = at.h;
    [[maybe_unused]] const float sv8 = static_cast<float>(sv7);
    [[maybe_unused]] const float sv9 = text::multiply(sv6, sv8);
    [[maybe_unused]] const float sv10 = text::add(sv5, sv9);
    [[maybe_unused]] const float sd10 = sd5 + 0.0f;
    [[maybe_unused]] const int sv11 = at.kv_idx;
    [[maybe_unused]] const int sv12 = 4;
    [[maybe_unused]] const bool sv13 = sv11 < sv12;
    [[maybe_unused]] const float sv14 = score;
    [[maybe_unused]] const float sd14 = 1.0f;
    [[maybe_unused]] const float sv15 = 0.5f;
    [[maybe_unused]] const float sv16 = text::least(sv14, sv15);
    [[maybe_unused]] const float sd16 = text::takes_second_least(sv14, sv15) ? 0.0f : sd14;
    [[maybe_unused]] const float sv17 = score;
    [[maybe_unused]] const float sd17 = 1.0f;
    [[maybe_unused]] const float sv18 = text::negate(sv17);
    [[maybe_unused]] const float sd18 = -sd17;
    [[maybe_unused]] const float sv19 = score;
    [[maybe_unused]] const float sd19 = 1.0f;
    [[maybe_unused]] const float sv20 = text::absolute(sv19);
    [[maybe_unused]] const float sd20 = sv19 > 0 ? sd19 : sv19 < 0 ? -sd19 : 0.0f;
    [[maybe_unused]] const float sv21 = text::negate(sv20);
    [[maybe_unused]] const float sd21 = -sd20;
    [[maybe_unused]] const float sv22 = expf(sv21);
    [[maybe_unused]] const float sd22 = sv22 * sd21;
    [[maybe_unused]] const float sv23 = text::largest(sv18, sv22);
    [[maybe_unused]] const float sd23 = text::takes_second_largest(sv18, sv22) ? sd22 : sd18;
    [[maybe_unused]] const float sv24 = sv13 ? sv16 : sv23;
    [[maybe_unused]] const float sd24 = sv13 ? sd16 : sd23;
    [[maybe_unused]] const float sv25 = text::add(sv10, sv24);
    [[maybe_unused]] const float sd25 = sd10 + sd24;
    share = sd25;
    return sv25;
  }
};

struct Text2 {
  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, float& share) {
    [[maybe_unused]] const int mv0 = at.kv_idx;
    [[maybe_unused]] const int mv1 = at.q_idx;
    [[maybe_unused]] const int mv2 = at.sk;
    [[maybe_unused]] const int mv3 = text::add(mv1, mv2);
    [[maybe_unused]] const int mv4 = at.sq;
    [[maybe_unused]] const int mv5 = text::subtract(mv3, mv4);
    [[maybe_unused]] const bool mv6 = mv0 <= mv5;
    [[maybe_unused]] const int mv7 = at.kv_idx;
    [[maybe_unused]] const int mv8 = at.sq;
    [[maybe_unused]] const int mv9 = 4;
    [[maybe_unused]] const int mv10 = text::divide(mv8, mv9);
    [[maybe_unused]] const bool mv11 = mv7 < mv10;
    [[maybe_unused]] const int mv12 = at.h;
    [[maybe_unused]] const int mv13 = 1;
    [[maybe_unused]] const bool mv14 = mv12 == mv13;
    [[maybe_unused]] const bool mv15 = !mv14;
    [[maybe_unused]] const bool mv16 = mv11 && mv15;
    [[maybe_unused]] const bool mv17 = mv6 || mv16;
    const bool shown = mv17;
    share = 1;
    return shown ? score : -ptx::infinity();
  }
};

struct Text3 {
  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, float& share) {
    [[maybe_unused]] const int sv0 = at.kv_idx;
    [[maybe_unused]] const int sv1 = 7;
    [[maybe_unused]] const int sv2 = text::remainder(sv0, sv1);
    [[maybe_unused]] const int sv3 = at.q_idx;
    [[maybe_unused]] const int sv4 = 7;
    [[maybe_unused]] const int sv5 = text::remainder(sv3, sv4);
    [[maybe_unused]] const bool sv6 = sv2 == sv5;
    [[maybe_unused]] const float sv7 = ptx::infinity();
    [[maybe_unused]] const float sv8 = text::negate(sv7);
    [[maybe_unused]] const int sv9 = 1;
    [[maybe_unused]] const float sv10 = score;
    [[maybe_unused]] const float sd10 = 1.0f;
    [[maybe_unused]] const float sv11 = score;
    [[maybe_unused]] const float sd11 = 1.0f;
    [[maybe_unused]] const float sv12 = text::multiply(sv10, sv11);
    [[maybe_unused]] const float sd12 = sd10 * sv11 + sv10 * sd11;
    [[maybe_unused]] const float sv13 = static_cast<float>(sv9);
    [[maybe_unused]] const float sv14 = text::add(sv13, sv12);
    [[maybe_unused]] const float sd14 = 0.0f + sd12;
    [[maybe_unused]] const float sv15 = sqrtf(sv14);
    [[maybe_unused]] const float sd15 = sd14 / (2 * sv15);
    [[maybe_unused]] const int sv16 = 2;
    [[maybe_unused]] const float sv17 = score;
    [[maybe_unused]] const float sd17 = 1.0f;
    [[maybe_unused]] const float sv18 = cosf(sv17);
    [[maybe_unused]] const float sd18 = -sinf(sv17) * sd17;
    [[maybe_unused]] const float sv19 = static_cast<float>(sv16);
    [[maybe_unused]] const float sv20 = text::add(sv19, sv18);
    [[maybe_unused]] const float sd20 = 0.0f + sd18;
    [[maybe_unused]] const float sv21 = logf(sv20);
    [[maybe_unused]] const float sd21 = sd20 / sv20;
    [[maybe_unused]] const float sv22 = text::subtract(sv15, sv21);
    [[maybe_unused]] const float sd22 = sd15 - sd21;
    [[maybe_unused]] const int sv23 = 1;
    [[maybe_unused]] const float sv24 = score;
    [[maybe_unused]] const float sd24 = 1.0f;
    [[maybe_unused]] const float sv25 = score;
    [[maybe_unused]] const float sd25 = 1.0f;
    [[maybe_unused]] const float sv26 = text::multiply(sv24, sv25);
    [[maybe_unused]] const float sd26 = sd24 * sv25 + sv24 * sd25;
    [[maybe_unused]] const float sv27 = static_cast<float>(sv23);
    [[maybe_unused]] const float sv28 = text::add(sv27, sv26);
    [[maybe_unused]] const float sd28 = 0.0f + sd26;
    [[maybe_unused]] const float sv29 = 0.3f;
    [[maybe_unused]] const float sv30 = powf(sv28, sv29);
    [[maybe_unused]] const float sd30 = sv29 * powf(sv28, sv29 - 1) * sd28;
    [[maybe_unused]] const int sv31 = 2;
    [[maybe_unused]] const float sv32 = score;
    [[maybe_unused]] const float sd32 = 1.0f;
    [[maybe_unused]] const float sv33 = sinf(sv32);
    [[maybe_unused]] const float sd33 = cosf(sv32) * sd32;
    [[maybe_unused]] const float sv34 = static_cast<float>(sv31);
    [[maybe_unused]] const float sv35 = text::add(sv34, sv33);
    [[maybe_unused]] const float sd35 = 0.0f + sd33;
    [[maybe_unused]] const float sv36 = text::divide(sv30, sv35);
    [[maybe_unused]] const float sd36 = (sd30 - sv36 * sd35) / sv35;
    [[maybe_unused]] const float sv37 = 0.5f;
    [[maybe_unused]] const int sv38 = at.b;
    [[maybe_unused]] const float sv39 = static_cast<float>(sv38);
    [[maybe_unused]] const float sv40 = text::multiply(sv37, sv39);
    [[maybe_unused]] const int sv41 = 1;
    [[maybe_unused]] const float sv42 = static_cast<float>(sv41);
    [[maybe_unused]] const float sv43 = text::add(sv40, sv42);
    [[maybe_unused]] const int sv44 = text::truncate(sv43);
    [[maybe_unused]] const float sv45 = static_cast<float>(sv44);
    [[maybe_unused]] const float sv46 = text::multiply(sv36, sv45);
    [[maybe_unused]] const float sd46 = sd36 * sv45;
    [[maybe_unused]] const float sv47 = text::add(sv22, sv46);
    [[maybe_unused]] const float sd47 = sd22 + sd46;
    [[maybe_unused]] const float sv48 = sv6 ? sv8 : sv47;
    [[maybe_unused]] const float sd48 = sv6 ? 0.0f : sd47;
    share = sd48;
    return sv48;
  }
};

struct Text4 {
  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, float& share) {
    [[maybe_unused]] const int mv0 = at.q_idx;
    [[maybe_unused]] const int mv1 = 3;
    [[maybe_unused]] const int mv2 = text::remainder(mv0, mv1);
    [[maybe_unused]] const int mv3 = 0;
    [[maybe_unused]] const bool mv4 = mv2 != mv3;
    [[maybe_unused]] const int mv5 = at.kv_idx;
    [[maybe_unused]] const int mv6 = 40;
    [[maybe_unused]] const bool mv7 = mv5 > mv6;
    [[maybe_unused]] const bool mv8 = mv4 && mv7;
    const bool shown = mv8;
    [[maybe_unused]] const int sv0 = at.kv_idx;
    [[maybe_unused]] const int sv1 = 11;
    [[maybe_unused]] const int sv2 = text::remainder(sv0, sv1);
    [[maybe_unused]] const int sv3 = 0;
    [[maybe_unused]] const bool sv4 = sv2 == sv3;
    [[maybe_unused]] const float sv5 = 2e+30f;
    [[maybe_unused]] const float sv6 = text::negate(sv5);
    [[maybe_unused]] const float sv7 = score;
    [[maybe_unused]] const float sd7 = 1.0f;
    [[maybe_unused]] const int sv8 = 1;
    [[maybe_unused]] const float sv9 = 0.01f;
    [[maybe_unused]] const int sv10 = at.kv_idx;
    [[maybe_unused]] const int sv11 = 40;
    [[maybe_unused]] const int sv12 = text::subtract(sv10, sv11);
    [[maybe_unused]] const float sv13 = static_cast<float>(sv12);
    [[maybe_unused]] const float sv14 = logf(sv13);
    [[maybe_unused]] const float sv15 = text::multiply(sv9, sv14);
    [[maybe_unused]] const float sv16 = static_cast<float>(sv8);
    [[maybe_unused]] const float sv17 = text::add(sv16, sv15);
    [[maybe_unused]] const float sv18 = text::multiply(sv7, sv17);
    [[maybe_unused]] const float sd18 = sd7 * sv17;
    [[maybe_unused]] const float sv19 = sv4 ? sv6 : sv18;
    [[maybe_unused]] const float sd19 = sv4 ? 0.0f : sd18;
    share = sd19;
    return shown ? sv19 : -ptx::infinity();
  }
};

struct Text5 {
  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, float& share) {
    [[maybe_unused]] const float sv0 = score;
    [[maybe_unused]] const float sd0 = 1.0f;
    [[maybe_unused]] const float sv1 = 0.1f;
    [[maybe_unused]] const int sv2 = 1;
    [[maybe_unused]] const int sv3 = at.q_idx;
    [[maybe_unused]] const int sv4 = text::add(sv2, sv3);
    [[maybe_unused]] const int sv5 = at.sk;
    [[maybe_unused]] const int sv6 = text::add(sv4, sv5);
    [[maybe_unused]] const int sv7 = at.sq;
    [[maybe_unused]] const int sv8 = text::subtract(sv6, sv7);
    [[maybe_unused]] const int sv9 = at.kv_idx;
    [[maybe_unused]] const int sv10 = text::subtract(sv8, sv9);
    [[maybe_unused]] const float sv11 = static_cast<float>(sv10);
    [[maybe_unused]] const float sv12 = logf(sv11);
    [[maybe_unused]] const float sv13 = text::multiply(sv1, sv12);
    [[maybe_unused]] const float sv14 = text::subtract(sv0, sv13);
    [[maybe_unused]] const float sd14 = sd0 - 0.0f;
    share = sd14;
    return sv14;
  }
};

struct QuickText1 {
  static DFA_DEVICE float logit(float score, [[maybe_unused]] const UserTextPlace& at, float& share) {
    [[maybe_unused]] const float sv0 = 5.0f;
    [[maybe_unused]] const float sv1 = score;
    [[maybe_unused]] const float sd1 = 1.0f;
    [[maybe_unused]] const float sv2 = 5.0f;
    [[maybe_unused]] const float sv3 = text::multiply(sv1, 0.2f);
    [[maybe_unused]] const float sd3 = sd1 * 0.2f;
    [[maybe_unused]] const float sv4 = quick_tanh(sv3);
    [[maybe_unused]] const float sd4 = (1 - sv4 * sv4) * sd3;
    [[maybe_unused]] const float sv5 = text::multiply(sv0, sv4);
    [[maybe_unused]] const float sd5 = sv0 * sd4;
    [[maybe_unused]] const float sv6 = 0.1f;
    [[maybe_unused]] const int sv7 = at.h;
    [[maybe_unused]] const float sv8 = static_cast<float>(sv7);
    [[maybe_unused]] const float sv9 = text::multiply(sv6, sv8);
    [[maybe_unused]] const float sv10 = text::add(sv5, sv9);
    [[maybe_unused]] const float sd10 = sd5 + 0.0f;
    [[maybe_unused]] const int sv11 = at.kv_idx;
    [[maybe_unused]] const int sv12 = 4;
    [[maybe_unused]] const bool sv13 = sv11 < sv12;
    [[maybe_unused]] const float sv14 = score;
    [[maybe_unused]] const float sd14 = 1.0f;
    [[maybe_unused]] const float sv15 = 0.5f;
    [[maybe_unused]] const float sv16 = text::least(sv14, sv15);
    [[maybe_unused]] const float sd16 = text::takes_second_least(sv14, sv15) ? 0.0f : sd14;
    [[maybe_unused]] const float sv17 = score;
    [[maybe_unused]] const float sd17 = 1.0f;
    [[maybe_unused]] const float sv18 = text::negate(sv17);
    [[maybe_unused]] const float sd18 = -sd17;
    [[maybe_unused]] const float sv19 = score;
    [[maybe_unused]] const float sd19 = 1.0f;
    [[maybe_unused]] const float sv20 = text::absolute(sv19);
    [[maybe_unused]] const float sd20 = sv19 > 0 ? sd19 : sv19 < 0 ? -sd19 : 0.0f;
    [[maybe_unused]] const float sv21 = text::negate(sv20);
    [[maybe_unused]] const float sd21 = -sd20;
    [[maybe_unused]] const float sv22 = expf(sv21);
    [[maybe_unused]] const float sd22 = sv22 * sd21;
    [[maybe_unused]] const float sv23 = text::largest(sv18, sv22);
    [[maybe_unused]] const float sd23 = text::takes_second_largest(sv18, sv22) ? sd22 : sd18;
    [[maybe_unused]] const float sv24 = sv13 ? sv16 : sv23;
    [[maybe_unused]] const float sd24 = sv13 ? sd16 : sd23;
    [[maybe_unused]] const float sv25 = text::add(sv10, sv24);
    [[maybe_unused]] const float sd25 = sd10 + sd24;
    share = sd25;
    return sv25;
  }
};
